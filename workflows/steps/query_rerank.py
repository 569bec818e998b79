"""Build the input of a query reranker, and predict the ranks of expansions (Chuang et al., 2023, sections 3.3.1 and
3.3.2)."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.tables import DOCUMENTS, EXPANSIONS, QRELS, QUERIES, RANKING, check, read, write
from sparring.components.expansion import query_reading
from sparring.components.expansion.expansions import FILE
from sparring.components.expansion.query_choice import PREDICTIONS
from sparring.components.expansion.query_reading import PARTS, TOP, Candidates, Passages
from sparring.components.files import remove, replacing, save_array, write_array
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_rows, shard_size
from sparring.workflows.store.dag import Description

ROW_GROUP = 10_000
PREDICTED = "predicted.parquet"


class PredictConfig(Config):
    """Precision and shards of the prediction of ranks."""

    precision: Literal["bf16", "fp32", "int8"] = "bf16"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster, but it
    rounds."""
    shard: int = Field(2_000, ge=1)
    """Largest number of expansions in one file. If prediction is interrupted, each worker loses at most one file."""


@Description(part="query reranking")
def candidates(out: Path, machine: Machine, *, data: Path, expanded: Path, ranking: Path | None) -> dict[str, Any]:
    """Write the input of a query reranker as a collection to be tokenised (`components.expansion.query_reading`).

    The documents are the expanded queries. With a ranking, each query's first passage follows them, every passage once,
    and then an empty passage for queries that retrieved nothing. The queries are those of `data`.
    """
    names = read(expanded / FILE, EXPANSIONS, columns=["doc_id"])["doc_id"]
    queries = read(expanded / "queries.parquet", QUERIES, columns=["query_id", "text"])
    texts = queries["text"].take(pc.index_in(names, value_set=queries["query_id"].combine_chunks()))
    passages = None if ranking is None else _first_passages(data, ranking, names)
    return _write(out, query_reading.candidates(names, texts, passages), data, len(names), passages)


@Description(part="query reranking")
def candidates_released(
    out: Path, machine: Machine, *, data: Path, expanded: Path, ranking: Path | None
) -> dict[str, Any]:
    """Write the same for the public code's templates, where question, expansion, title and passage are separate
    texts."""
    table = read(expanded / FILE, EXPANSIONS, columns=["doc_id", "text", "query_id"])
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "text"])
    passages = None if ranking is None else _first_passages(data, ranking, table["doc_id"])
    return _write(out, query_reading.candidates_released(table, queries, passages), data, len(table), passages)


def _first_passages(data: Path, ranking: Path, names: pa.ChunkedArray) -> Passages:
    """Read the first passages that expanded queries retrieve, in the collection's order, in one pass over it."""
    columns = ["query_id", "doc_id"]
    first = read(ranking / "ranking.parquet", RANKING, columns=columns, filters=[("rank", "=", 1)])
    retrieved, kept = pc.unique(first["doc_id"]), []
    for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=DOCUMENTS.names):
        kept.append(batch.filter(pc.is_in(batch["doc_id"], value_set=retrieved)))
    passages = check(pa.Table.from_batches(kept), DOCUMENTS, source="documents")
    first_ids = first["doc_id"].take(pc.index_in(names, value_set=first["query_id"].combine_chunks()))
    rows = pc.index_in(first_ids, value_set=passages["doc_id"].combine_chunks(), skip_nulls=True)
    return Passages(passages, pc.fill_null(rows, len(passages)).to_numpy().astype(np.int64))


def _write(out: Path, candidates: Candidates, data: Path, expansions: int, passages: Passages | None) -> dict[str, Any]:
    """Write what is read as the documents of a collection with the queries of `data`. Return the summary."""
    for name, rows in {TOP: candidates.top, PARTS: candidates.parts}.items():
        if rows is not None:
            write_array(out / name, rows)
    with replacing(out / "documents.parquet") as path:
        pq.write_table(candidates.documents, path, row_group_size=ROW_GROUP)
    write(out / "queries.parquet", read(data / "queries.parquet", QUERIES), QUERIES)
    write(out / "qrels.parquet", QRELS.empty_table(), QRELS)
    if passages is None:
        return {"expansions": expansions}
    count = len(passages.documents)
    return {"expansions": expansions, "passages": count, "found_nothing": int((passages.rows == count).sum())}


@Description(part="query reranking", models="predicting", version=2)
def predict(
    out: Path,
    machine: Machine,
    *,
    expanded: Path,
    candidates: Path,
    tokens: Path,
    reranker: Path,
    config: PredictConfig,
) -> dict[str, Any]:
    """Write `predicted.parquet`, the rank that a query reranker predicts for each expansion, up to a constant."""
    names = read(expanded / FILE, EXPANSIONS, columns=["doc_id"])["doc_id"]
    scores, counted = map_rows(
        Predictor,
        len(names),
        shard_size(len(names), config.shard),
        out=out,
        machine=machine,
        pool=machine.cluster.scoring_pool(),
        unit="expansions",
        data=candidates,
        tokens=tokens,
        model=reranker / "model",
        config=config,
        batch_tokens=machine.batch_tokens,
    )
    write(out / PREDICTED, pa.table([names, pa.array(scores)], names=PREDICTIONS.names), PREDICTIONS)
    remove(out, "part-*.npy")
    return {"expansions": len(names), **counted}


class Predictor:
    """A worker that predicts the ranks of expansions with a query reranker."""

    def __init__(self, *, data: Path, tokens: Path, model: Path, config: PredictConfig, **options: Any) -> None:
        from sparring.components.data.token_store import TokenStore
        from sparring.components.expansion.query_reading import RerankerInputs
        from sparring.components.models.cross_encoder import CrossEncoder
        from sparring.components.models.inference import TimedInference

        self._inference = TimedInference(CrossEncoder, model, precision=config.precision, **options)
        self._reading = RerankerInputs.stored(data, TokenStore(tokens, model), self._inference.config.pair_tokens)

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Read some expansions and their queries."""
        return {**task, "inputs": self._inference.prepare(self._reading, np.arange(task["start"], task["stop"]))}

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the predicted ranks of some expansions. Return the seconds that the model took."""
        ranks, took = self._inference.timed_outputs(task["inputs"])
        save_array(path, ranks)
        return took
