"""Score query-document pairs with a ranker, on Ray Data: to judge groups, or to rerank a ranking."""

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
from components.files import replacing
from components.groups import ids_of, measured, rows_of
from components.processor import settle
from components.tables import GROUPS, RANKING, check
from workflows.cluster import Cluster
from workflows.shards import Shard, map_shards


class ScoreConfig(Config):
    """How pairs are scored."""

    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward pass."""
    shard: int = Field(2_000, ge=1)
    """Pairs in one file; what an interrupted scoring loses at most, for each worker."""


class RerankConfig(ScoreConfig):
    """How a ranking is reranked."""

    depth: int = Field(50, ge=1)
    """Documents of each query that the ranker orders anew; what follows them stays behind them."""
    queries: int | None = Field(None, ge=1)
    """Only so many of the split's judged queries, the same in every ranking; null for all."""


def judge(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, groups: Path, ranker: Path, config: ScoreConfig
) -> dict[str, Any]:
    """The same groups with the ranker's scores as teacher."""
    table = check(pq.read_table(groups / "groups.parquet"), GROUPS, what=str(groups))
    lists = table["doc_ids"].combine_chunks()
    parents = pc.list_parent_indices(lists)
    pairs = pa.table({"query_id": table["query_id"].take(parents), "doc_id": lists.flatten()})
    scores, counted = _score(out, cluster, data, tokens, ranker, pairs, config)
    teacher = pa.ListArray.from_arrays(
        pa.array(lists.offsets.to_numpy() - lists.offsets[0].as_py(), pa.int32()), scores
    )
    at = table.schema.get_field_index("teacher")
    with replacing(out / "groups.parquet") as path:
        pq.write_table(check(table.set_column(at, "teacher", teacher), GROUPS, what="groups"), path)
    return {"pairs": len(pairs), **counted}


def rerank(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, ranking: Path, split: str, ranker: Path,
    config: RerankConfig,
) -> dict[str, Any]:  # fmt: skip
    """The measured queries' ranking with its first documents in the ranker's order; equal scores stay as they were.

    Documents beyond the depth follow in their old order, with scores below the ranker's last.
    """
    table = check(pq.read_table(ranking / "ranking.parquet"), RANKING, what=str(ranking))
    wanted = pa.array(measured(data, split, config.queries), pa.string())
    table = table.filter(pc.is_in(table["query_id"], value_set=wanted))
    first = pc.less_equal(table["rank"], config.depth)
    top, rest = table.filter(first), table.filter(pc.invert(first))
    scores, counted = _score(out, cluster, data, tokens, ranker, top.select(["query_id", "doc_id"]), config)
    lowest = float(pc.min(scores).as_py()) if len(scores) else 0.0
    behind = pa.array(lowest - rest["rank"].to_numpy().astype(np.float32), pa.float32())
    joined = pa.concat_tables(
        [
            top.set_column(3, "score", scores).append_column("before", top["rank"]),
            rest.set_column(3, "score", behind).append_column("before", rest["rank"]),
        ]
    )
    place = pc.index_in(joined["query_id"], value_set=wanted)
    joined = joined.append_column("place", place)
    joined = joined.sort_by([("place", "ascending"), ("score", "descending"), ("before", "ascending")])
    places = joined["place"].to_numpy()
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]]) if len(places) else np.empty(0, int)
    ranks = np.arange(len(places)) - np.repeat(starts, np.diff(np.r_[starts, len(places)])) + 1
    joined = joined.set_column(2, "rank", pa.array(ranks, pa.int32())).select(RANKING.names)
    with replacing(out / "ranking.parquet") as path:
        pq.write_table(check(joined, RANKING, what="ranking"), path)
    return {"pairs": len(top), "queries": len(starts), **counted}


def _score(
    out: Path, cluster: Cluster, data: Path, tokens: Path, ranker: Path, pairs: pa.Table, config: ScoreConfig
) -> tuple[pa.Array, dict[str, float]]:
    """Scores of pairs in their order, and what the workers counted; a pair that stands twice is scored once."""
    queries = rows_of(pairs["query_id"], ids_of(data / "queries.parquet", "query_id"), what="pairs")
    documents = rows_of(pairs["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what="pairs")
    distinct, inverse = np.unique(np.stack([queries, documents], 1), axis=0, return_inverse=True)
    with replacing(out / "pairs.npy") as path, path.open("wb") as file:
        np.save(file, distinct)
    shards = [
        Shard(f"part-{i:05d}.npy", min(config.shard, len(distinct) - start), {"start": start})
        for i, start in enumerate(range(0, len(distinct), config.shard))
    ]
    cuda = cluster.cuda()
    counted = map_shards(
        Scorer, shards, out=out, cluster=cluster, pool=cluster.map, unit="pairs", gpu=cuda, tokens=tokens,
        model=ranker / "model", pairs=out / "pairs.npy", config=config,
        batch_tokens=cluster.tokens_at_once(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    values = np.concatenate([np.empty(0, np.float32), *(np.load(out / shard.file) for shard in shards)])
    return pa.array(values[inverse.reshape(-1)], pa.float32()), counted


class Scorer:
    """A ranker that scores pairs of rows of the token store."""

    def __init__(
        self, *, tokens: Path, model: Path, pairs: Path, config: ScoreConfig, batch_tokens: int, cuda: bool,
        threads: int,
    ) -> None:  # fmt: skip
        import torch

        from components import inference
        from components.cross_encoder import CrossEncoder
        from components.floor import Products
        from components.text import TokenStore

        settle(threads)
        self.device = torch.device("cuda" if cuda else "cpu")
        ranker = CrossEncoder.load(model)
        self.products = Products(ranker.backbone)
        self._rate = self.products.rate(tokens=batch_tokens, device=self.device.type, precision=config.precision)
        self._model = inference.ready(ranker, device=self.device, precision=config.precision)
        self._tokens = TokenStore(tokens, model)
        self._pairs, self._config, self.batch_tokens = np.load(pairs, mmap_mode="r"), config, batch_tokens

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the scores of one shard; how long it took, and could not have been shorter."""
        chosen = np.array(self._pairs[task["start"] : task["start"] + self._config.shard])
        began = time.perf_counter()
        scores = self.scores(chosen)
        seconds = time.perf_counter() - began
        with at("files"), path.open("wb") as file:
            np.save(file, scores)
        return {
            "model_seconds": seconds,
            "floor_seconds": self.products.operations(self.lengths(chosen)) / self._rate,
        }

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """(N,) fp32 scores of (N, 2) rows of queries and documents."""
        import torch

        from components.text import to_device, token_batches

        limit, tokens = self._model.config.pair_tokens, self._tokens
        batches = token_batches(self.lengths(rows), self.batch_tokens)
        found = []
        with torch.inference_mode():
            for chosen in batches:
                with at("files"):
                    batch = tokens.template.pairs(tokens.queries, tokens.documents, rows[chosen], limit)
                found.append(self._model(to_device(batch, self.device)))
        order = np.argsort(np.concatenate(batches))
        return torch.cat(found).cpu().numpy()[order]  # fetched once: a GPU goes on while its next batch is put together

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(N,) tokens of (N, 2) rows of queries and documents as the model reads them."""
        tokens, limit = self._tokens, self._model.config.pair_tokens
        return tokens.template.pair_lengths(tokens.queries, tokens.documents, rows, limit)
