"""Which retrieved documents bear an answer to their query, on Ray Data: for measures, positives and negatives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.answers import Mode, matcher, prepared
from components.config import Config, UserError
from components.files import save_array, write_array
from components.groups import ids_of, queries_of, rows_of
from components.tables import ANSWERED, QUERIES, RANKING, read, write
from components.text import document_text
from workflows.cluster import Cluster
from workflows.shards import Shard, joined, map_shards


class AnswerConfig(Config):
    """When a document bears an answer."""

    mode: Mode = "tokens"
    """`tokens` as DPR matches; `regex` where answers are patterns, as CuratedTREC's."""
    fields: Literal["text", "title and text"] = "text"
    """Where it is looked for. DPR, and so AR2's numbers, look in the text alone."""


def answering(
    out: Path, cluster: Cluster, *, data: Path, ranking: Path, splits: list[str], config: AnswerConfig
) -> dict[str, Any]:
    """The splits' ranking with a column more: `hit`, whether the document bears an answer (`components.answers`).

    The collection is read once, a row group at a time, each by the worker that looks into it.
    """
    wanted = queries_of(data, splits, ["query_id"])["query_id"]
    table = read(ranking / "ranking.parquet", RANKING)
    table = table.filter(pc.is_in(table["query_id"], value_set=wanted.combine_chunks()))
    asked = rows_of(table["query_id"], ids_of(data / "queries.parquet", "query_id"), what=str(ranking))
    documents = rows_of(table["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what=str(ranking))
    order = np.argsort(documents, kind="stable")
    write_array(out / "pairs.npy", np.stack([asked[order], documents[order]], 1))
    shards = _shards(data / "documents.parquet", documents[order])
    map_shards(
        Matcher, shards, out=out, cluster=cluster, pool=cluster.map, unit="documents", data=data,
        pairs=out / "pairs.npy", config=config,
    )  # fmt: skip
    hits = np.empty(len(order), bool)
    hits[order] = joined(out, shards, bool)
    write(out / "ranking.parquet", table.append_column("hit", pa.array(hits)), ANSWERED)
    for shard in shards:
        (out / shard.file).unlink()
    (out / "pairs.npy").unlink()
    return {"documents": len(hits), "hits": int(hits.sum())}


def _shards(documents: Path, sought: np.ndarray) -> list[Shard]:
    """For each row group that is asked about, where it begins and which pairs ask, `sought` ascending."""
    metadata, first, shards = pq.read_metadata(documents), 0, []
    for group in range(metadata.num_row_groups):
        last = first + metadata.row_group(group).num_rows
        start, stop = np.searchsorted(sought, [first, last]).tolist()
        if stop > start:
            task = {"group": group, "first": first, "start": start, "stop": stop}
            shards.append(Shard(f"part-{group:05d}.npy", stop - start, task))
        first = last
    return shards


class Matcher:
    """Looks for answers in the documents of one row group."""

    def __init__(self, *, data: Path, pairs: Path, config: AnswerConfig, threads: int) -> None:
        self._documents, self._config = data / "documents.parquet", config
        self._pairs = np.load(pairs, mmap_mode="r")
        queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"])
        self._ids, self._answers = queries["query_id"], queries["answers"]
        self._matchers: dict[int, Callable[[str], bool]] = {}

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write whether each pair is a hit."""
        pairs = np.array(self._pairs[task["start"] : task["stop"]])
        sought, inverse = np.unique(pairs[:, 1] - task["first"], return_inverse=True)
        ready = [prepared(text, self._config.mode) for text in self._texts(task["group"], sought.tolist())]
        asked = pairs[:, 0].tolist()
        self._make_ready(set(asked))
        matchers = self._matchers
        hits = [matchers[query](ready[at]) for query, at in zip(asked, inverse.tolist(), strict=True)]
        save_array(path, np.asarray(hits, bool))

    def _texts(self, group: int, rows: list[int]) -> list[str]:
        """Where an answer is looked for in some documents of a row group."""
        fields = ["title", "text"] if self._config.fields == "title and text" else ["text"]
        table = pq.ParquetFile(self._documents).read_row_group(group, columns=fields)
        columns = [table[field].to_pylist() for field in fields]
        if len(fields) == 1:
            return [columns[0][row] for row in rows]
        return [document_text(columns[0][row], columns[1][row]) for row in rows]

    def _make_ready(self, queries: set[int]) -> None:
        """See that there is a matcher of each query's answers."""
        for query in queries - self._matchers.keys():
            try:
                self._matchers[query] = matcher(self._answers[query].as_py(), self._config.mode)
            except UserError as error:
                raise UserError(f"query {self._ids[query]}: {error}") from None
