"""Mark which retrieved documents contain an answer to their query, for measures, positives and negatives."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import Config, UserError
from sparring.components.data.answers import Mode, matcher, normalize
from sparring.components.data.groups import ids_of, query_ids_of, rows_of
from sparring.components.data.tables import ANSWERED, QUERIES, RANKING, document_text, pieces, read
from sparring.components.files import remove, replacing, save_array
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store.dag import Description

ROWS = 1_000_000
"""Number of rows of a ranking in memory at once. It changes no result."""


class AnswerConfig(Config):
    """Rules by which a document contains an answer."""

    mode: Mode = "tokens"
    """Kind of match. `tokens`: as in DPR's code. `regex`: answers are patterns, as CuratedTREC's. EM and F1 of a reader
    compare words with the pattern itself, so they mean nothing for `regex`."""
    fields: Literal["text", "title and text"] = "text"
    """Parts of a document that are searched for an answer. DPR, and so AR2's numbers, search the text alone."""


@Description(part="groups and negatives")
def answering(
    out: Path, machine: Machine, *, data: Path, ranking: Path, splits: list[str], config: AnswerConfig
) -> dict[str, Any]:
    """Write the splits' ranking with a column `hit`, which says whether the document contains an answer
    (`components.data.answers`).

    The collection is read once, each row group by the worker that searches it. The ranking may have hundreds of
    millions of rows, so it is read piece by piece, and the pairs to search for in each row group are kept on disk.
    """
    of_splits = query_ids_of(data, splits)
    query_ids = ids_of(data / "queries.parquet", "query_id")
    document_ids = ids_of(data / "documents.parquet", "doc_id")
    metadata = pq.read_metadata(data / "documents.parquet")
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    first = np.cumsum([0, *sizes])

    def sought() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield queries and documents of the splits' rows, by their places in the collection."""
        for piece in _of_splits(ranking, of_splits, ["query_id", "doc_id"]):
            queries = rows_of(piece["query_id"], query_ids, source=str(ranking))
            yield queries, rows_of(piece["doc_id"], document_ids, source=str(ranking))

    counts = np.zeros(len(sizes), np.int64)
    for _, rows in sought():
        counts += np.bincount(np.searchsorted(first, rows, "right") - 1, minlength=len(sizes))
    starts = np.cumsum([0, *counts])
    pairs, places = out / "pairs.npy", out / "places.npy"
    if not places.exists():
        _write_sought(pairs, places, sought(), first, starts)
    shards = [
        Shard(
            f"part-{group:05d}.npy",
            int(counts[group]),
            {"group": group, "first": int(first[group]), "start": int(starts[group]), "stop": int(starts[group + 1])},
        )
        for group in np.flatnonzero(counts).tolist()
    ]
    map_shards(
        Matcher,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="documents",
        data=data,
        pairs=pairs,
        config=config,
    )
    hits, positions = np.zeros(int(starts[-1]), bool), np.load(places, mmap_mode="r")
    for shard in shards:
        hits[positions[shard.task["start"] : shard.task["stop"]]] = np.load(out / shard.file)
    _write_hits(out / "ranking.parquet", _of_splits(ranking, of_splits, RANKING.names), hits)
    remove(out, pairs.name, places.name, "part-*.npy")
    return {"documents": len(hits), "hits": int(hits.sum())}


def _of_splits(ranking: Path, wanted: pa.Array, columns: list[str]) -> Iterator[pa.Table]:
    """Yield a ranking's rows of some queries, piece by piece."""
    for piece in pieces(ranking / "ranking.parquet", RANKING, columns=columns, rows=ROWS):
        yield piece.filter(pc.is_in(piece["query_id"], value_set=wanted))


def _write_sought(
    pairs: Path, places: Path, sought: Iterable[tuple[np.ndarray, np.ndarray]], first: np.ndarray, starts: np.ndarray
) -> None:
    """Write the (query, document) pairs by the row group of their document, and their positions in the ranking."""
    with replacing(places) as places_path, replacing(pairs) as pairs_path:
        sorted_pairs = np.lib.format.open_memmap(pairs_path, mode="w+", dtype=np.int64, shape=(int(starts[-1]), 2))
        positions = np.lib.format.open_memmap(places_path, mode="w+", dtype=np.int64, shape=(int(starts[-1]),))
        free, row = starts[:-1].copy(), 0
        for queries, documents in sought:
            group = np.searchsorted(first, documents, "right") - 1
            order = np.argsort(group, kind="stable")
            cuts = np.searchsorted(group[order], np.arange(len(free) + 1))
            for number in np.flatnonzero(np.diff(cuts)).tolist():
                chosen = order[cuts[number] : cuts[number + 1]]
                to_fill = slice(free[number], free[number] + len(chosen))
                sorted_pairs[to_fill, 0], sorted_pairs[to_fill, 1] = queries[chosen], documents[chosen]
                positions[to_fill] = row + chosen
                free[number] += len(chosen)
            row += len(queries)
        sorted_pairs.flush()
        positions.flush()


def _write_hits(to: Path, ranking: Iterable[pa.Table], hits: np.ndarray) -> None:
    with replacing(to) as path, pq.ParquetWriter(path, ANSWERED) as writer:
        row = 0
        for piece in ranking:
            writer.write_table(piece.append_column("hit", pa.array(hits[row : row + len(piece)])))
            row += len(piece)


class Matcher:
    """A worker that searches the documents of one row group for answers."""

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
        ready = [normalize(text, self._config.mode) for text in self._texts(task["group"], sought.tolist())]
        queries = pairs[:, 0].tolist()
        self._make_ready(set(queries))
        matchers = self._matchers
        hits = [matchers[query](ready[place]) for query, place in zip(queries, inverse.tolist(), strict=True)]
        save_array(path, np.asarray(hits, bool))

    def _texts(self, group: int, rows: list[int]) -> list[str]:
        """Return the parts of some documents of a row group that are searched."""
        fields = ["title", "text"] if self._config.fields == "title and text" else ["text"]
        table = pq.ParquetFile(self._documents).read_row_group(group, columns=fields)
        columns = [table[field].to_pylist() for field in fields]
        if len(fields) == 1:
            return [columns[0][row] for row in rows]
        return [document_text(columns[0][row], columns[1][row]) for row in rows]

    def _make_ready(self, queries: set[int]) -> None:
        """Make the matchers of some queries' answers, unless they are made already."""
        for query in queries - self._matchers.keys():
            try:
                self._matchers[query] = matcher(self._answers[query].as_py(), self._config.mode)
            except UserError as error:
                raise UserError(f"query {self._ids[query]}: {error}") from None
