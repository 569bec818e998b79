"""Score query-document pairs with a ranker, on Ray Data: to judge groups, or to rerank a ranking."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from components import runs
from components.config import Config
from components.files import remove, save_array, write_array
from components.groups import ids_of, measured, rows_of
from components.processor import settle
from components.tables import GROUPS, RANKING, read, write
from workflows.cluster import Cluster
from workflows.shards import mapped_rows


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
    table = read(groups / "groups.parquet", GROUPS)
    lists = table["doc_ids"].combine_chunks()
    parents = pc.list_parent_indices(lists)
    pairs = pa.table({"query_id": table["query_id"].take(parents), "doc_id": lists.flatten()})
    scores, counted = _score(out, cluster, data, tokens, ranker, pairs, config)
    teacher = pa.ListArray.from_arrays(
        pa.array(lists.offsets.to_numpy() - lists.offsets[0].as_py(), pa.int32()), scores
    )
    at = table.schema.get_field_index("teacher")
    write(out / "groups.parquet", table.set_column(at, "teacher", teacher), GROUPS)
    remove(out, "pairs.npy", "part-*.npy")
    return {"pairs": len(pairs), **counted}


def rerank(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, ranking: Path, split: str, ranker: Path,
    config: RerankConfig,
) -> dict[str, Any]:  # fmt: skip
    """The measured queries' ranking with its first documents in the ranker's order; equal scores stay as they were.

    Documents beyond the depth follow in their old order, with scores below the ranker's last.
    """
    table = read(ranking / "ranking.parquet", RANKING)
    wanted = pa.array(measured(data, split, config.queries), pa.string())
    table = table.filter(pc.is_in(table["query_id"], value_set=wanted))
    first = pc.less_equal(table["rank"], config.depth)
    top, rest = table.filter(first), table.filter(pc.invert(first))
    scores, counted = _score(out, cluster, data, tokens, ranker, top.select(["query_id", "doc_id"]), config)
    lowest = float(pc.min(scores).as_py()) if len(scores) else 0.0
    behind = pa.array(lowest - rest["rank"].to_numpy().astype(np.float32), pa.float32())
    table = pa.concat_tables(
        [
            top.set_column(3, "score", scores).append_column("before", top["rank"]),
            rest.set_column(3, "score", behind).append_column("before", rest["rank"]),
        ]
    )
    place = pc.index_in(table["query_id"], value_set=wanted)
    table = table.append_column("place", place)
    table = table.sort_by([("place", "ascending"), ("score", "descending"), ("before", "ascending")])
    ranks = runs.places(table["place"].to_numpy()) + 1
    table = table.set_column(2, "rank", pa.array(ranks, pa.int32())).select(RANKING.names)
    write(out / "ranking.parquet", table, RANKING)
    remove(out, "pairs.npy", "part-*.npy")
    return {"pairs": len(top), "queries": int((ranks == 1).sum()), **counted}


def _score(
    out: Path, cluster: Cluster, data: Path, tokens: Path, ranker: Path, pairs: pa.Table, config: ScoreConfig
) -> tuple[pa.Array, dict[str, float]]:
    """Scores of pairs in their order, and what the workers counted; a pair that stands twice is scored once."""
    queries = rows_of(pairs["query_id"], ids_of(data / "queries.parquet", "query_id"), what="pairs")
    documents = rows_of(pairs["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what="pairs")
    distinct, inverse = np.unique(np.stack([queries, documents], 1), axis=0, return_inverse=True)
    write_array(out / "pairs.npy", distinct)
    scores, counted = mapped_rows(
        Scorer, len(distinct), config.shard, out=out, cluster=cluster, pool=cluster.scoring(), unit="pairs",
        tokens=tokens, model=ranker / "model", pairs=out / "pairs.npy", config=config,
        batch_tokens=cluster.tokens_at_once(cuda=cluster.cuda()),
    )  # fmt: skip
    return pa.array(scores[inverse.reshape(-1)], pa.float32()), counted


class Scorer:
    """A ranker that scores pairs of rows of the token store."""

    def __init__(
        self, *, tokens: Path, model: Path, pairs: Path, config: ScoreConfig, batch_tokens: int, cuda: bool,
        threads: int,
    ) -> None:  # fmt: skip
        from components.cross_encoder import CrossEncoder
        from components.inference import Inference
        from components.text import TokenStore

        settle(threads)
        ranker = CrossEncoder.load(model)
        self.inference = Inference(ranker, cuda=cuda, precision=config.precision, batch_tokens=batch_tokens)
        self._tokens, self._limit = TokenStore(tokens, model), ranker.config.pair_tokens
        self._pairs = np.load(pairs, mmap_mode="r")

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the scores of one shard; how long it took, and could not have been shorter."""
        scores, took = self.scores(np.array(self._pairs[task["start"] : task["stop"]]))
        save_array(path, scores)
        return took

    def scores(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """(N,) fp32 scores of (N, 2) rows of queries and documents, and how long they took."""
        template, texts = self._tokens.template, (self._tokens.queries, self._tokens.documents)
        lengths = template.pair_lengths(*texts, rows, self._limit)
        return self.inference(lengths, lambda at: template.pairs(*texts, rows[at], self._limit))
