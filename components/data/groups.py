"""Groups as arrays: which query, which documents, targets, teacher; rows of the token store instead of ids."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components import draws
from components.clock import at
from components.config import UserError, listing
from components.tables import GROUPS, QRELS, QUERIES, read


class Group(NamedTuple):
    """One training example by rows of the token store."""

    query: int
    documents: np.ndarray
    targets: np.ndarray
    teacher: np.ndarray | None


class Groups:
    """A groups table with ids resolved against a collection."""

    def __init__(self, path: Path, data: Path) -> None:
        table = read(path, GROUPS).combine_chunks()
        self.query_ids = table["query_id"]
        self.queries = rows_of(table["query_id"], ids_of(data / "queries.parquet", "query_id"), what=str(path))
        lists = table["doc_ids"].combine_chunks()
        self._offsets = lists.offsets.to_numpy()
        self._documents = rows_of(lists.values, ids_of(data / "documents.parquet", "doc_id"), what=str(path))
        self._targets = table["targets"].combine_chunks().values.to_numpy(zero_copy_only=False)
        judged = table["teacher"].null_count == 0
        self._teacher = table["teacher"].combine_chunks().values.to_numpy(zero_copy_only=False) if judged else None

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, row: int) -> Group:
        at = slice(self._offsets[row], self._offsets[row + 1])
        teacher = self._teacher[at] if self._teacher is not None else None
        return Group(int(self.queries[row]), self._documents[at], self._targets[at], teacher)


def ids_of(path: Path, column: str) -> pa.Array:
    """One id column of a Parquet table."""
    with at("files"):
        return pq.read_table(path, columns=[column])[column].combine_chunks()


def queries_of(data: Path, splits: list[str], columns: list[str]) -> pa.Table:
    """Columns of the queries of some splits, in the artifact's order; UserError for a split without any."""
    table = read(data / "queries.parquet", QUERIES, columns=dict.fromkeys([*columns, "split"]))
    there = pc.unique(table["split"]).to_pylist()
    for split in splits:
        if split not in there:
            raise UserError(f"splits: there are no queries in {split!r}; accepted: {listing(there)}")
    return table.filter(pc.is_in(table["split"], pa.array(splits, pa.string()))).select(columns)


def documents_for(k: int, data: Path, *, key: str = "k") -> int:
    """How many documents a collection has; UserError where `k` for a query, which `key` asks for, are more, or none."""
    count = pq.read_metadata(data / "documents.parquet").num_rows
    if not 1 <= k <= count:
        raise UserError(f"{key}: {k} documents a query are asked for; accepted: 1 to {count}, all there are")
    return int(count)


def rows_of(ids: pa.Array | pa.ChunkedArray, among: pa.Array, *, what: str) -> np.ndarray:
    """int64 rows at which ids stand among others; ValueError names one that is not there."""
    rows = pc.index_in(ids, value_set=among)
    if rows.null_count:
        missing = pc.filter(ids, pc.is_null(rows))[0]
        raise ValueError(f"{what}: {missing} is not in the collection")
    return (rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows).to_numpy().astype(np.int64)


def measured(data: Path, split: str, count: int | None) -> list[str]:
    """The queries of a split that something is measured on: all of them, or a sample of those that can be measured.

    Those are the queries with a relevant document, or where a split has none of them (questions alone), with an answer.
    The sample depends on ids alone, so that every system of every run is measured on the same.
    """
    of_split = [("split", "=", split)]
    if count is None:
        return read(data / "queries.parquet", QUERIES, columns=["query_id"], filters=of_split)["query_id"].to_pylist()
    known = read(data / "qrels.parquet", QRELS, filters=[*of_split, ("relevance", ">", 0)])
    if not len(known):
        queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"], filters=of_split)
        known = queries.filter(pc.greater(pc.list_value_length(queries["answers"]), 0))
    can_be = pc.unique(known["query_id"]).to_pylist()
    kept = draws.sample(can_be, count, "measured")
    return [query for query in can_be if query in kept]


def places_of(ids: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of ids in the order of ids, and each row's place in that order, which breaks ties."""
    by_id = pc.sort_indices(ids).to_numpy().astype(np.int64)
    places = np.empty(len(by_id), np.int64)
    places[by_id] = np.arange(len(by_id))
    return by_id, places


def positives(data: Path) -> dict[int, np.ndarray]:
    """Rows of the relevant documents of each query row, over all splits."""
    qrels = read(data / "qrels.parquet", QRELS, filters=[("relevance", ">", 0)])
    queries = rows_of(qrels["query_id"], ids_of(data / "queries.parquet", "query_id"), what="qrels")
    documents = rows_of(qrels["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what="qrels")
    order = np.argsort(queries, kind="stable")
    found, starts = np.unique(queries[order], return_index=True)
    return dict(zip(found.tolist(), np.split(documents[order], starts[1:]), strict=True))


def no_negatives(data: Path, tokens: Path) -> dict[int, np.ndarray]:
    """Rows of the documents that are no negatives of each query row: what answers one query answers all that ask the
    same under other ids. `tokens` says which do."""
    same = np.load(tokens / "queries.same.npy").tolist()
    of_texts: dict[int, np.ndarray] = {}
    for query, documents in positives(data).items():
        found = of_texts.get(same[query])
        of_texts[same[query]] = documents if found is None else np.union1d(found, documents)
    return {query: of_texts[text] for query, text in enumerate(same) if text in of_texts}
