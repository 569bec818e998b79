"""What query rerankers read, and asking them for the rank of each expansion (paper 002, sections 3.3.1 and 3.3.2)."""

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from components.clock import at
from components.config import Config
from components.expansions import FILE
from components.files import replacing
from components.processor import settle
from components.query_reading import TOP, Reading
from components.tables import DOCUMENTS, EXPANSIONS, QRELS, check
from workflows.cluster import Cluster
from workflows.shards import Shard, map_shards

PREDICTED = "predicted.parquet"


class PredictConfig(Config):
    """How ranks are predicted."""

    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward pass."""
    shard: int = Field(2_000, ge=1)
    """Expansions in one file; what an interrupted prediction loses at most, for each worker."""


def candidates(out: Path, cluster: Cluster, *, data: Path, expanded: Path, ranking: Path | None) -> dict[str, Any]:
    """Write what a query reranker reads, as a collection to be tokenised (`components.query_reading`).

    Documents are the expanded queries and, with a ranking of them, behind those the passages that they find first,
    each once, and an empty one for those that find nothing. Queries are those of `data`.
    """
    names = pq.read_table(expanded / FILE, columns=["doc_id"])["doc_id"]
    asked = pq.read_table(expanded / "queries.parquet", columns=["query_id", "text"])
    texts = asked["text"].take(pc.index_in(names, value_set=asked["query_id"].combine_chunks()))
    columns = {"doc_id": names, "title": pa.array([""] * len(names), pa.string()), "text": texts}
    tables = [check(pa.table(columns), DOCUMENTS, what="expanded queries")]
    summary = {"expansions": len(names)}
    if ranking is not None:
        first = pq.read_table(ranking / "ranking.parquet", columns=["query_id", "doc_id"], filters=[("rank", "=", 1)])
        passages = _passages(data, pc.unique(first["doc_id"]))
        of = first["doc_id"].take(pc.index_in(names, value_set=first["query_id"].combine_chunks()))
        rows = pc.index_in(of, value_set=passages["doc_id"].combine_chunks(), skip_nulls=True)
        top = pc.add(pc.fill_null(rows, len(passages)), len(names)).to_numpy().astype(np.int64)
        tables += [passages, pa.table({"doc_id": ["#"], "title": [""], "text": [""]}, schema=DOCUMENTS)]
        with replacing(out / TOP) as path, path.open("wb") as file:
            np.save(file, top)
        summary |= {"passages": len(passages), "found_nothing": int((top == len(names) + len(passages)).sum())}
    with replacing(out / "documents.parquet") as path:
        pq.write_table(pa.concat_tables(tables), path, row_group_size=10_000)
    with replacing(out / "queries.parquet") as path:
        pq.write_table(pq.read_table(data / "queries.parquet"), path)
    with replacing(out / "qrels.parquet") as path:
        pq.write_table(QRELS.empty_table(), path)
    return summary


def _passages(data: Path, wanted: pa.Array) -> pa.Table:
    """Some of a collection's documents, in its order; one pass over it."""
    kept = []
    for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=DOCUMENTS.names):
        kept.append(batch.filter(pc.is_in(batch["doc_id"], value_set=wanted)))
    return check(pa.Table.from_batches(kept), DOCUMENTS, what="documents")


def predict(
    out: Path, cluster: Cluster, *, expanded: Path, candidates: Path, tokens: Path, reranker: Path,
    config: PredictConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write `predicted.parquet`, the rank that a query reranker predicts for each expansion, up to a constant."""
    names = check(pq.read_table(expanded / FILE), EXPANSIONS, what=str(expanded))["doc_id"]
    shards = [
        Shard(
            f"part-{i:05d}.npy", min(config.shard, len(names) - start), {"start": start, "stop": start + config.shard}
        )
        for i, start in enumerate(range(0, len(names), config.shard))
    ]
    cuda = cluster.cuda()
    counted = map_shards(
        Predictor, shards, out=out, cluster=cluster, pool=cluster.map, unit="expansions", gpu=cuda, data=candidates,
        tokens=tokens, model=reranker / "model", config=config, count=len(names),
        batch_tokens=cluster.tokens_at_once(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    scores = np.concatenate([np.empty(0, np.float32), *(np.load(out / shard.file) for shard in shards)])
    with replacing(out / PREDICTED) as path:
        pq.write_table(pa.table({"doc_id": names, "score": pa.array(scores, pa.float32())}), path)
    for shard in shards:
        (out / shard.file).unlink()
    return {"expansions": len(names), **counted}


class Predictor:
    """A query reranker that predicts ranks of rows of a token store."""

    def __init__(
        self, *, data: Path, tokens: Path, model: Path, config: PredictConfig, count: int, batch_tokens: int,
        cuda: bool, threads: int,
    ) -> None:  # fmt: skip
        import torch

        from components import inference
        from components.cross_encoder import CrossEncoder
        from components.text import TokenStore

        settle(threads)
        self._device = torch.device("cuda" if cuda else "cpu")
        ranker = CrossEncoder.load(model)
        self._reading = Reading(data, TokenStore(tokens, model), ranker.config.pair_tokens)
        self._model = inference.ready(ranker, device=self._device, precision=config.precision)
        self._batch_tokens, self._count = batch_tokens, count

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the predicted ranks of some rows; how long it took."""
        rows = np.arange(task["start"], min(task["stop"], self._count))
        began = time.perf_counter()
        scores = self.scores(rows)
        seconds = time.perf_counter() - began
        with at("files"), path.open("wb") as file:
            np.save(file, scores)
        return {"model_seconds": seconds}

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """(N,) fp32 predicted ranks."""
        import torch

        from components.text import to_device, token_batches

        batches = token_batches(self._reading.lengths(rows), self._batch_tokens)
        with torch.inference_mode():
            found = [self._model(to_device(self._reading.batch(rows[chosen]), self._device)) for chosen in batches]
        return torch.cat(found).cpu().numpy()[np.argsort(np.concatenate(batches))]
