"""Score pairs of a query and a document with a ranker. The pairs come from groups, or from a ranking to rerank."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.groups import Groups, write_lists
from sparring.components.data.tables import RANKING, write
from sparring.components.files import remove, save_array, write_array
from sparring.components.retrieval.reordering import ShortLists
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_rows
from sparring.workflows.store.dag import Description


class ScoreConfig(Config):
    """Precision and shards of scoring."""

    precision: Literal["bf16", "fp32", "int8"] = "bf16"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster, but it
    rounds."""
    shard: int = Field(2_000, ge=1)
    """Number of pairs in one file. If scoring is interrupted, each worker loses at most one file."""


class RerankConfig(ScoreConfig):
    """Depth and sample of a reranking."""

    depth: int = Field(50, ge=1)
    """Number of documents of each query that the ranker reorders. The remaining documents follow in their old order."""
    queries: int | None = Field(None, ge=1)
    """Number of the split's judged queries to rerank, the same queries for every ranking. Null reranks all."""


PAIRS = {"data": ("documents.parquet",), "tokens": ("*.ids.npy", "*.offsets.npy"), "ranker": ("*",)}
"""Inputs that only the workers read."""


@Description(part="scoring by the ranker", makes="taught groups", models="scoring", version=2, workers_read=PAIRS)
def score_groups(
    out: Path, machine: Machine, *, data: Path, tokens: Path, groups: Path, ranker: Path, config: ScoreConfig
) -> dict[str, Any]:
    """Write the same groups with the ranker's scores as teacher."""
    unscored = Groups(groups / "groups.parquet", data)
    queries = np.repeat(unscored.queries, np.diff(unscored.offsets))
    scores, counted = _score(out, machine, tokens, ranker, queries, unscored.documents, config)
    write_lists(groups / "groups.parquet", "teacher", scores, out / "groups.parquet")
    remove(out, "pairs.npy", "part-*.npy")
    return {"pairs": len(scores), **counted}


@Description(part="scoring by the ranker", models="scoring", version=2, workers_read=PAIRS)
def rerank(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    tokens: Path,
    ranking: Path,
    split: str,
    ranker: Path,
    config: RerankConfig,
) -> dict[str, Any]:
    """Write the measured queries' ranking with its first documents in the ranker's order. Documents with equal scores
    keep their order.

    Documents beyond the depth follow in their old order, with scores below the ranker's lowest.
    """
    lists = ShortLists.read(ranking, data, split, depth=config.depth, queries=config.queries)
    scores, counted = _score(out, machine, tokens, ranker, lists.queries, lists.documents, config)
    table = lists.reordered(scores)
    write(out / "ranking.parquet", table, RANKING)
    remove(out, "pairs.npy", "part-*.npy")
    return {"pairs": len(scores), "queries": len(pc.unique(table["query_id"])), **counted}


def _score(
    out: Path,
    machine: Machine,
    tokens: Path,
    ranker: Path,
    queries: np.ndarray,
    documents: np.ndarray,
    config: ScoreConfig,
) -> tuple[np.ndarray, dict[str, float]]:
    """Compute fp32 scores (N,) of pairs of rows (N,), and return the workers' counts too. A pair that occurs twice is
    scored once. So are pairs of texts with the same tokens."""
    queries, documents = (
        np.load(tokens / f"{side}.same.npy", mmap_mode="r")[rows]
        for side, rows in (("queries", queries), ("documents", documents))
    )
    count = documents.max(initial=0) + 1
    distinct, inverse = np.unique(queries * count + documents, return_inverse=True)
    write_array(out / "pairs.npy", np.stack(np.divmod(distinct, count), 1))
    scores, counted = map_rows(
        Scorer,
        len(distinct),
        config.shard,
        out=out,
        machine=machine,
        pool=machine.cluster.scoring_pool(),
        unit="pairs",
        tokens=tokens,
        model=ranker / "model",
        pairs=out / "pairs.npy",
        config=config,
        batch_tokens=machine.batch_tokens,
    )
    return scores[inverse], counted


class Scorer:
    """A worker that scores pairs of rows of a token store with a ranker."""

    def __init__(self, *, tokens: Path, model: Path, pairs: Path, config: ScoreConfig, **options: Any) -> None:
        from sparring.components.data.token_store import TokenStore
        from sparring.components.models.cross_encoder import CrossEncoder
        from sparring.components.models.inference import Pairs, TimedInference

        self.inference = TimedInference(CrossEncoder, model, precision=config.precision, **options)
        store = TokenStore(tokens, model)
        self._reading = Pairs(store.template, store.queries, store.documents, self.inference.config.pair_tokens)
        self._pairs = np.load(pairs, mmap_mode="r")

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Read the texts of one shard's pairs."""
        pairs = np.array(self._pairs[task["start"] : task["stop"]])
        return {**task, "inputs": self.inference.prepare(self._reading, pairs)}

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the scores of one shard. Return the seconds that the model took."""
        scores, took = self.inference.timed_outputs(task["inputs"])
        save_array(path, scores)
        return took

    def scores(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """Compute fp32 scores (N,) of rows of queries and documents (N, 2). Return the seconds that the model took,
        too."""
        return self.inference.timed(self._reading, rows)
