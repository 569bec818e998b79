"""Groups as arrays, and which rows of a collection's tables its ids, queries and relevant documents are."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.config import UserError, listing
from components.data.tables import GROUPS, QRELS, QUERIES, read
from components.rng import keyed_sample
from components.timing import timed


class Group(NamedTuple):
    """One training example: rows of the collection's tables, which are also rows of the token store."""

    query: int
    documents: np.ndarray
    targets: np.ndarray
    teacher: np.ndarray | None


class Groups:
    """A table of groups, with rows of a collection's tables instead of ids."""

    def __init__(self, path: Path, data: Path) -> None:
        table = read(path, GROUPS).combine_chunks()
        self.query_ids = table["query_id"]
        self.queries = rows_of(table["query_id"], ids_of(data / "queries.parquet", "query_id"), what=str(path))
        lists = table["doc_ids"].combine_chunks()
        self._offsets = lists.offsets.to_numpy()
        self._documents = rows_of(lists.values, ids_of(data / "documents.parquet", "doc_id"), what=str(path))
        self._targets = table["targets"].combine_chunks().values.to_numpy(zero_copy_only=False)
        has_teacher = table["teacher"].null_count == 0
        self._teacher = table["teacher"].combine_chunks().values.to_numpy(zero_copy_only=False) if has_teacher else None

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, row: int) -> Group:
        span = slice(self._offsets[row], self._offsets[row + 1])
        teacher = self._teacher[span] if self._teacher is not None else None
        return Group(int(self.queries[row]), self._documents[span], self._targets[span], teacher)


def ids_of(path: Path, column: str) -> pa.Array:
    """One id column of a Parquet table."""
    with timed("files"):
        return pq.read_table(path, columns=[column])[column].combine_chunks()


def queries_of(data: Path, splits: list[str], columns: list[str]) -> pa.Table:
    """Columns of the queries of some splits, in the table's order; UserError for a split without queries."""
    table = read(data / "queries.parquet", QUERIES, columns=dict.fromkeys([*columns, "split"]))
    present = pc.unique(table["split"]).to_pylist()
    for split in splits:
        if split not in present:
            raise UserError(f"splits: there are no queries in {split!r}; accepted: {listing(present)}")
    return table.filter(pc.is_in(table["split"], pa.array(splits, pa.string()))).select(columns)


def check_k(k: int, data: Path, *, key: str = "k") -> int:
    """The number of documents in a collection; UserError, naming `key`, unless `k` is between 1 and that number."""
    count = pq.read_metadata(data / "documents.parquet").num_rows
    if not 1 <= k <= count:
        raise UserError(f"{key}: got {k} documents for a query; accepted: 1 to {count}, the size of the collection")
    return int(count)


def rows_of(ids: pa.Array | pa.ChunkedArray, among: pa.Array, *, what: str) -> np.ndarray:
    """int64 rows of `among` that hold the ids; ValueError names an id that is missing, and `what` it was read from."""
    rows = pc.index_in(ids, value_set=among)
    if rows.null_count:
        missing = pc.filter(ids, pc.is_null(rows))[0]
        raise ValueError(f"{what}: {missing} is not in the collection")
    return (rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows).to_numpy().astype(np.int64)


def measured_queries(data: Path, split: str, count: int | None) -> list[str]:
    """The ids of the queries of a split on which something is measured: all, or a sample of `count`.

    The sample is taken from the queries with a relevant document; in a split without judgements, from those with an
    answer. It depends on ids alone, so that every system of every run is measured on the same queries.
    """
    of_split = [("split", "=", split)]
    if count is None:
        return read(data / "queries.parquet", QUERIES, columns=["query_id"], filters=of_split)["query_id"].to_pylist()
    known = read(data / "qrels.parquet", QRELS, filters=[*of_split, ("relevance", ">", 0)])
    if not len(known):
        queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"], filters=of_split)
        known = queries.filter(pc.greater(pc.list_value_length(queries["answers"]), 0))
    measurable = pc.unique(known["query_id"]).to_pylist()
    sample = keyed_sample(measurable, count, "measured")
    return [query for query in measurable if query in sample]


def id_order(ids: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The rows sorted by id, and each row's position in that order, by which ties are broken."""
    by_id = pc.sort_indices(ids).to_numpy().astype(np.int64)
    positions = np.empty(len(by_id), np.int64)
    positions[by_id] = np.arange(len(by_id))
    return by_id, positions


def positives(data: Path) -> dict[int, np.ndarray]:
    """For each query with a judgement above 0, in any split, the rows of its relevant documents."""
    qrels = read(data / "qrels.parquet", QRELS, filters=[("relevance", ">", 0)])
    queries = rows_of(qrels["query_id"], ids_of(data / "queries.parquet", "query_id"), what="qrels")
    documents = rows_of(qrels["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what="qrels")
    order = np.argsort(queries, kind="stable")
    judged, starts = np.unique(queries[order], return_index=True)
    return dict(zip(judged.tolist(), np.split(documents[order], starts[1:]), strict=True))


def known_positives(data: Path, tokens: Path) -> dict[int, np.ndarray]:
    """`positives`, joined over the queries with the same text: documents that must not become negatives of a query.

    `tokens` is the token store, which says which queries have the same text.
    """
    same = np.load(tokens / "queries.same.npy").tolist()
    by_text: dict[int, np.ndarray] = {}
    for query, documents in positives(data).items():
        others = by_text.get(same[query])
        by_text[same[query]] = documents if others is None else np.union1d(others, documents)
    return {query: by_text[text] for query, text in enumerate(same) if text in by_text}
