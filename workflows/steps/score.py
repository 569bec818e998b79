"""Score pairs of a query and a document with a ranker. The pairs come from groups, or from a ranking to rerank."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.groups import Groups, write_lists
from sparring.components.data.tables import RANKING, write
from sparring.components.files import save_array, write_array
from sparring.components.retrieval.reordering import ShortLists
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_shards, row_shards, run_in_worker, shard_size
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description, Function


class ScoreConfig(Config):
    """Precision and shards of scoring."""

    precision: Literal["bf16", "fp32", "int8"] = "bf16"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster, but it
    rounds."""
    shard: int = Field(2_000, ge=1)
    """Largest number of pairs in one file. If scoring is interrupted, each worker loses at most one file."""


class RerankConfig(ScoreConfig):
    """Depth and sample of a reranking."""

    depth: int = Field(50, ge=1)
    """Number of documents of each query that the ranker reorders. The remaining documents follow in their old order."""
    queries: int | None = Field(None, ge=1)
    """Number of the split's judged queries to rerank, the same queries for every ranking. Null reranks all."""


ROWS = {"data": ("documents.parquet",), "tokens": ("*.ids.npy", "*.offsets.npy")}
"""Files that are not read to find the pairs."""
PAIRS = {
    "data": ("*.parquet",),
    "tokens": ("*.npy",),
    "ranker": ("*",),
    "groups": ("*",),
    "ranking": ("*",),
    "out": ("pairs.npy", "inverse.npy", "part-*.npy", "*.parquet"),
}
"""Files that only the workers read."""


@Description(part="scoring by the ranker", makes="taught groups", models="scoring", version=3, workers_read=PAIRS)
def score_groups(
    out: Path, machine: Machine, *, data: Path, tokens: Path, groups: Path, ranker: Path, config: ScoreConfig
) -> dict[str, Any]:
    """Write the same groups with the ranker's scores as teacher."""
    inputs = {"data": data, "groups": groups}
    counted = _score(out, machine, _pair_groups, tokens, ranker, config, **inputs)
    written = run_in_worker(_write_groups, out, machine, inputs)
    transfer.remove(out, "pairs.npy", "inverse.npy", "part-*.npy")
    return {**written, **counted}


@Description(part="scoring by the ranker", models="scoring", version=3, workers_read=PAIRS)
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
    inputs = {"data": data, "ranking": ranking, "split": split, "depth": config.depth, "queries": config.queries}
    counted = _score(out, machine, _pair_lists, tokens, ranker, config, **inputs)
    written = run_in_worker(_write_ranking, out, machine, inputs)
    transfer.remove(out, "pairs.npy", "inverse.npy", "part-*.npy")
    return {**written, **counted}


def _score(
    out: Path,
    machine: Machine,
    pair: Function,
    tokens: Path,
    ranker: Path,
    config: ScoreConfig,
    **inputs: Any,
) -> dict[str, float]:
    """Write the scores of pairs, and return the workers' counts. A worker finds the pairs with `pair`."""
    pairs = run_in_worker(pair, out, machine, {**inputs, "tokens": tokens})["pairs"]
    return map_shards(
        Scorer,
        row_shards(pairs, shard_size(pairs, config.shard), "part-{:05d}.npy"),
        out=out,
        machine=machine,
        pool=machine.cluster.scoring_pool(),
        unit="pairs",
        gpu=machine.cuda,
        cuda=machine.cuda,
        tokens=tokens,
        model=ranker / "model",
        pairs=out / "pairs.npy",
        config=config,
        batch_tokens=machine.batch_tokens,
    )


@Description(workers_read=ROWS)
def _pair_groups(out: Path, machine: None, *, data: Path, groups: Path, tokens: Path) -> dict[str, int]:
    """Write the pairs of groups."""
    unscored = Groups(groups / "groups.parquet", data)
    return _write_pairs(out, tokens, np.repeat(unscored.queries, np.diff(unscored.offsets)), unscored.documents)


@Description(workers_read=ROWS)
def _pair_lists(out: Path, machine: None, *, tokens: Path, **lists: Any) -> dict[str, int]:
    """Write the pairs of a ranking's short lists."""
    short = _short_lists(**lists)
    return _write_pairs(out, tokens, short.queries, short.documents)


@Description(workers_read=ROWS)
def _write_groups(out: Path, machine: None, *, data: Path, groups: Path) -> dict[str, int]:
    """Write groups with their scores."""
    scores = _scores(out)
    write_lists(groups / "groups.parquet", "teacher", scores, out / "groups.parquet")
    return {"pairs": len(scores)}


@Description(workers_read=ROWS)
def _write_ranking(out: Path, machine: None, **lists: Any) -> dict[str, int]:
    """Write a ranking whose short lists are in the order of their scores."""
    scores = _scores(out)
    table = _short_lists(**lists).reordered(scores)
    write(out / "ranking.parquet", table, RANKING)
    return {"pairs": len(scores), "queries": len(pc.unique(table["query_id"]))}


def _short_lists(*, ranking: Path, data: Path, split: str, depth: int, queries: int | None) -> ShortLists:
    return ShortLists.read(ranking, data, split, depth=depth, queries=queries)


def _write_pairs(out: Path, tokens: Path, queries: np.ndarray, documents: np.ndarray) -> dict[str, int]:
    """Write pairs of rows (N,). A pair that occurs twice is scored once. So are pairs of texts with the same tokens."""
    queries, documents = (
        np.load(tokens / f"{side}.same.npy", mmap_mode="r")[rows]
        for side, rows in (("queries", queries), ("documents", documents))
    )
    count = documents.max(initial=0) + 1
    distinct, inverse = np.unique(queries * count + documents, return_inverse=True)
    write_array(out / "pairs.npy", np.stack(np.divmod(distinct, count), 1))
    write_array(out / "inverse.npy", inverse)
    return {"pairs": len(distinct)}


def _scores(out: Path) -> np.ndarray:
    """Read the fp32 scores (N,) of all pairs, of which several may be the same."""
    transfer.download(out)
    files = sorted(out.glob("part-*.npy"), key=lambda file: int(file.stem.removeprefix("part-")))
    parts = (np.load(file) for file in files)
    return np.concatenate([np.empty(0, np.float32), *parts])[np.load(out / "inverse.npy")]


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
