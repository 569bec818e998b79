"""Groups as arrays, and lookups of ids, queries and relevant documents in a collection's tables."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.data.tables import (
    AT_ONCE,
    DEV,
    DOCUMENTS,
    GROUPS,
    MINED,
    QRELS,
    QUERIES,
    TEXT,
    columns_of,
    elements,
    pieces,
    read,
    rows_in,
)
from sparring.components.files import made_once, readable, replacing
from sparring.components.rng import keyed_sample
from sparring.components.timing import timed

CANDIDATES = 10_000_000
"""Number of candidates whose ids are in memory at once. It does not change results."""
NOTHING, NO_NUMBERS = np.empty(0, np.int64), np.empty(0, np.float32)


class Group(NamedTuple):
    """A training example: row numbers in the collection's tables, which are also row numbers in the token store."""

    query: int
    documents: np.ndarray
    targets: np.ndarray
    teacher: np.ndarray | None


class Groups:
    """A table of groups, with row numbers of the collection's tables instead of ids.

    The table is read in pieces, because the ids of all candidates may not fit in memory.
    """

    def __init__(self, path: Path, data: Path) -> None:
        query_ids, most = ids_of(data / "queries.parquet", "query_id"), elements(path)
        # Fill arrays while reading: concatenating parts would need twice the memory. Unfilled parts take no memory.
        documents, targets, teacher = np.empty(most, np.int64), np.empty(most, np.float32), np.empty(most, np.float32)
        queries, lengths, taught, end = [NOTHING], [NOTHING], True, 0
        for piece in pieces(path, stored_schema(path), rows=CANDIDATES):
            queries.append(rows_of(piece["query_id"], query_ids, source=str(path)))
            lists = piece["doc_ids"].combine_chunks()
            lengths.append(lists.value_lengths().to_numpy())
            start, end = end, end + int(lengths[-1].sum())
            documents[start:end] = (
                flat(piece["doc_rows"])
                if "doc_rows" in piece.column_names
                else document_rows(lists.flatten(), data, source=str(path))
            )
            targets[start:end] = flat(piece["targets"])
            taught = taught and not piece["teacher"].null_count
            if taught:
                teacher[start:end] = flat(piece["teacher"])
        self.queries = np.concatenate(queries)
        """Rows of the queries: (G,)."""
        self.offsets = np.r_[0, np.cumsum(np.concatenate(lengths))]
        """Start of each group's candidates among all candidates, and the end of the last: (G + 1,)."""
        self.documents = documents[:end]
        """Rows of all candidates, in the order of the groups: (C,)."""
        self.targets = targets[:end]
        """Targets of all candidates: (C,)."""
        self.teacher = teacher[:end] if taught else None
        """A teacher's scores of all candidates: (C,). If None, some groups have none."""

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, row: int) -> Group:
        span = slice(self.offsets[row], self.offsets[row + 1])
        teacher = self.teacher[span] if self.teacher is not None else None
        return Group(int(self.queries[row]), self.documents[span], self.targets[span], teacher)


def flat(lists: pa.ChunkedArray) -> np.ndarray:
    """Concatenate the numbers in all lists of a column."""
    return np.concatenate([NO_NUMBERS, *(chunk.flatten().to_numpy(zero_copy_only=False) for chunk in lists.chunks)])


def stored_schema(groups: Path) -> pa.Schema:
    """Return the schema of a table of groups: `MINED` if it has the documents' rows, otherwise `GROUPS`."""
    return MINED if "doc_rows" in columns_of(groups) else GROUPS


def write_lists(groups: Path, column: str, values: np.ndarray, to: Path) -> None:
    """Copy a table of groups with new numbers (C,) in a column of lists, in the order of the groups."""
    schema, start = stored_schema(groups), 0
    index = schema.get_field_index(column)
    with replacing(to) as path, pq.ParquetWriter(path, schema) as writer:
        for piece in pieces(groups, schema, rows=CANDIDATES):
            lengths = pc.list_value_length(piece["doc_ids"]).to_numpy()
            offsets = np.r_[0, np.cumsum(lengths)]
            lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values[start : start + offsets[-1]]))
            writer.write_table(piece.set_column(index, schema.field(column), lists))
            start += offsets[-1]


def ids_of(path: Path, column: str) -> pa.Array:
    """Read an id column of a Parquet table."""
    with timed("files"), pq.ParquetFile(readable(path)) as file:
        return file.read(columns=[column])[column].cast(TEXT).combine_chunks()


def queries_of(data: Path, splits: list[str], columns: list[str]) -> pa.Table:
    """Read columns of the queries of some splits, in the table's order.

    Raise UserError for a split without queries, except `DEV`, which a collection may lack.
    """
    table = read(data / "queries.parquet", QUERIES, columns=dict.fromkeys([*columns, "split"]))
    present = pc.unique(table["split"]).to_pylist()
    for split in splits:
        if split not in (*present, DEV):
            advice = (
                f"Use one of these splits: {listing(present)}. To split off a part of their queries, write `data: "
                f"{{..., hold_out: {{{split}: {{share: 0.1}}}}}}`."
                if present
                else "The remaining splits have none either. Use the recipe `adapt`, which trains without queries. If "
                "the collection has rated pairs, `data.positive` makes them queries and documents."
            )
            raise UserError(f"splits: there are no queries in {split!r}. {advice}", code="unknown-split")
    return table.filter(pc.is_in(table["split"], pa.array(splits, TEXT))).select(columns)


def query_ids_of(data: Path, splits: list[str]) -> pa.Array:
    """Read the ids of the queries of some splits, as `queries_of` does."""
    return queries_of(data, splits, ["query_id"])["query_id"].combine_chunks()


def check_k(k: int, data: Path) -> int:
    """Return the number of documents in a collection. Raise UserError unless `k` is between 1 and this number."""
    count = rows_in(data / "documents.parquet")
    if not 1 <= k <= count:
        raise UserError(
            f"k: got {k}, but the collection has {count} documents. Use 1 to {count}. (If sentences are retrieved, k "
            "is the largest cutoff of `retrieve`.)",
            code="out-of-range",
        )
    return count


def rows_of(ids: pa.Array | pa.ChunkedArray, among: pa.Array, *, source: str) -> np.ndarray:
    """Look up ids in the array `among`. Return their rows as int64.

    Raise ValueError, naming the first missing id and the `source` of the ids.
    """
    return _rows(ids, [among], source)


def document_rows(ids: pa.Array | pa.ChunkedArray, data: Path, *, source: str) -> np.ndarray:
    """Look up ids of a collection's documents as `rows_of` does, without all of its ids in memory."""
    table = pieces(data / "documents.parquet", DOCUMENTS, columns=["doc_id"], rows=AT_ONCE)
    return _rows(ids, (piece["doc_id"].combine_chunks() for piece in table), source)


def _rows(ids: pa.Array | pa.ChunkedArray, among: Iterable[pa.Array], source: str) -> np.ndarray:
    encoded = (ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids).dictionary_encode()
    rows, start = np.full(len(encoded.dictionary), -1), 0
    for piece in among:
        # Hash the few distinct ids and scan `among`: hashing `among` for each piece would be slow.
        places = pc.index_in(piece, value_set=encoded.dictionary)
        rows_present = np.flatnonzero(pc.is_valid(places).to_numpy(zero_copy_only=False))[::-1]
        first = np.full(len(rows), -1)
        first[places.drop_null().to_numpy()[::-1]] = rows_present  # the first of equal ids is written last
        rows = np.where((rows < 0) & (first >= 0), start + first, rows)
        start += len(piece)
    if (missing := rows < 0).any():
        raise ValueError(f"{source}: the id {encoded.dictionary[int(missing.argmax())]} is not in the collection.")
    return rows[encoded.indices.to_numpy()]


def measured_queries(data: Path, split: str, count: int | None) -> list[str]:
    """Return the ids of a split's queries that are evaluated: a sample of `count`, or all if it is None.

    The sample is drawn from the queries with a relevant document. In a split without judgements it is drawn from the
    queries with an answer. It depends only on ids, so every system of every run is evaluated on the same queries.
    """
    of_split = [("split", "=", split)]
    if count is None:
        return read(data / "queries.parquet", QUERIES, columns=["query_id"], filters=of_split)["query_id"].to_pylist()
    if len(judged := judged_queries(data, split, count)):
        return judged.to_pylist()
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"], filters=of_split)
    answerable = queries.filter(pc.greater(pc.list_value_length(queries["answers"]), 0))["query_id"].to_pylist()
    sample = keyed_sample(answerable, count, "measured")
    return [query for query in answerable if query in sample]


def judged_queries(data: Path, split: str, count: int | None) -> pa.Array:
    """Return the ids of a split's queries with a relevant document.

    If `count` is not None, return the sample that `measured_queries` draws from them.
    """
    positives = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split), ("relevance", ">", 0)])
    judged = pc.unique(positives["query_id"])
    if count is None:
        return judged
    return judged.filter(pc.is_in(judged, pa.array(keyed_sample(judged.to_pylist(), count, "measured"), TEXT)))


def id_order(ids: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows sorted by id, and each row's position in this order. Ties are broken by this position."""
    by_id = pc.sort_indices(ids).to_numpy().astype(np.int64)
    positions = np.empty(len(by_id), np.int64)
    positions[by_id] = np.arange(len(by_id))
    return by_id, positions


class MappedIds:
    """The ids of a collection's documents, memory-mapped, so that the processes of a node share their memory."""

    def __init__(self, data: Path, folder: Path) -> None:
        """Open the ids in `folder`. The first process on a node writes them."""
        made_once(folder, partial(self._write, data))
        offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        buffers = [None, pa.py_buffer(offsets), pa.memory_map(str(folder / "ids")).read_buffer()]
        self.ids = pa.Array.from_buffers(TEXT, len(offsets) - 1, buffers)
        """Ids, in the collection's order."""

    @classmethod
    def _write(cls, data: Path, folder: Path) -> None:
        folder.mkdir()
        offsets, end = [np.zeros(1, np.int64)], 0
        with (folder / "ids").open("wb") as file:
            for piece in pieces(data / "documents.parquet", DOCUMENTS, columns=["doc_id"], rows=AT_ONCE):
                ids = piece["doc_id"].combine_chunks()
                _, starts, characters = ids.buffers()
                bounds = np.frombuffer(starts, np.int64)[ids.offset :][: len(ids) + 1]
                file.write(memoryview(characters or b"")[bounds[0] : bounds[-1]])
                offsets.append(bounds[1:] - bounds[0] + end)
                end = int(offsets[-1][-1])
        np.save(folder / "offsets.npy", np.concatenate(offsets))


class IdOrder(MappedIds):
    """The ids of a collection's documents and their order by code points, memory-mapped."""

    def __init__(self, data: Path, folder: Path) -> None:
        super().__init__(data, folder)
        self.rows = np.load(folder / "rows.npy", mmap_mode="r")
        """Rows of the documents in the order of ids: (D,)."""
        self.places = np.load(folder / "places.npy", mmap_mode="r")
        """Position of each document in the order of ids, which breaks ties: (D,)."""

    @classmethod
    def _write(cls, data: Path, folder: Path) -> None:
        super()._write(data, folder)
        rows, places = id_order(ids_of(data / "documents.parquet", "doc_id"))
        np.save(folder / "rows.npy", rows)
        np.save(folder / "places.npy", places)


class DocumentIds:
    """The ids of a collection's documents."""

    def __init__(self, data: Path) -> None:
        self.ids = ids_of(data / "documents.parquet", "doc_id")
        """Ids, in the collection's order."""
        self.places = id_order(self.ids)[1]
        """Position of each document in the order of ids, which breaks ties: (D,)."""


def positives(data: Path) -> dict[int, np.ndarray]:
    """Return the rows of each query's relevant documents, by query row. Judgements above 0 in any split count."""
    qrels = read(data / "qrels.parquet", QRELS, filters=[("relevance", ">", 0)])
    queries = rows_of(qrels["query_id"], ids_of(data / "queries.parquet", "query_id"), source="qrels")
    documents = document_rows(qrels["doc_id"], data, source="qrels")
    order = np.argsort(queries, kind="stable")
    judged, starts = np.unique(queries[order], return_index=True)
    return dict(zip(judged.tolist(), np.split(documents[order], starts[1:]), strict=True))


def known_positives(data: Path, tokens: Path) -> dict[int, np.ndarray]:
    """Return `positives`, shared among queries with equal text. These documents must not become negatives.

    `tokens` is the token store, which knows the queries with equal text.
    """
    same = np.load(tokens / "queries.same.npy").tolist()
    by_text: dict[int, np.ndarray] = {}
    for query, documents in positives(data).items():
        joined = by_text.get(same[query])
        by_text[same[query]] = documents if joined is None else np.union1d(joined, documents)
    return {query: by_text[text] for query, text in enumerate(same) if text in by_text}
