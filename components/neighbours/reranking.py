"""Reranking by reciprocal nearest neighbours (Zerveas et al., 2023, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.data.groups import DocumentIds, rows_of
from sparring.components.data.tables import RANKING, by_query, check
from sparring.components.data.vectors import DocumentVectors, Lists, QueryVectors, context_vectors
from sparring.components.files import read_json, replacing
from sparring.components.neighbours.reciprocal import NeighboursConfig, contexts_per_batch

TRIALS = "trials.json"
"""File with the configurations that were tried, and the mean of a measure for each, its `value`."""


ALL = np.iinfo(np.int32).max
"""Number of documents that stands for a whole list."""


class NeighboursRerankConfig(NeighboursConfig):
    """Settings for reranking by neighbours."""

    context: int = Field(60, ge=1)
    """N, the number of first documents of each query that are reranked by the neighbours among them. The rest of the
    ranking follows them. The public code omits the rest."""


def best(folder: Path) -> NeighboursRerankConfig:
    """Return the configuration with the best value among the trials of the step `chosen`, or the first of equals.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> tried = [{"context": context, "value": value} for context, value in [(5, 0.1), (6, 0.4), (7, 0.4)]]
    >>> _ = (folder / TRIALS).write_text(str(tried).replace("'", '"'))
    >>> best(folder).context
    6
    """
    trials = read_json(folder / TRIALS)
    trial = max(trials, key=lambda tried: tried["value"])
    return NeighboursRerankConfig(**{key: number for key, number in trial.items() if key != "value"})


class Ranked:
    """A ranking, with the rows at which the vectors of its queries and documents are stored.

    `documents` are the ids of the collection, `queries` the vectors of the ranking's queries.
    """

    def __init__(self, table: pa.Table, documents: DocumentIds, queries: QueryVectors) -> None:
        self.table = table
        self._rows = rows_of(table["doc_id"], documents.ids, source="ranking")
        self._places = documents.places[self._rows]
        self._ranks = table["rank"].to_numpy()
        self._begins, self._number = np.flatnonzero(self._ranks == 1), np.cumsum(self._ranks == 1) - 1
        self._queries = queries.rows(table["query_id"].take(self._begins))

    def __len__(self) -> int:
        return len(self._begins)

    def lists(self, context: int) -> Lists:
        """Return the first `context` documents of each query."""
        first = self._ranks <= context
        offsets = np.searchsorted(self._number[first], np.arange(len(self) + 1))
        return Lists(self._queries, self._rows[first], offsets)

    def reordered(self, scores: npt.NDArray, context: int) -> tuple[pa.Table, int]:
        """Give each query's first `context` documents new scores.

        Return the ranking, and the number of queries whose first document changed. `scores` are those of
        `lists(context)`, list after list. Later documents keep their order and get lower scores. Ties are in order of
        doc_id.
        """
        first, all_scores = self._ranks <= context, np.empty(len(self._rows), np.float32)
        all_scores[first] = scores
        if len(self):
            starts = np.searchsorted(self._number[first], np.arange(len(self)))
            lowest = np.minimum.reduceat(scores, starts)
            all_scores[~first] = (lowest[self._number] - (self._ranks - context))[~first]
        order = np.lexsort((self._places, -all_scores, self._number))
        changed = int((order[self._begins] != self._begins).sum())
        table = self.table
        columns = [table["query_id"], table["doc_id"].take(order), table["rank"], pa.array(all_scores[order])]
        return check(pa.table(columns, names=RANKING.names), RANKING, source="ranking"), changed


class Reranking:
    """A ranking whose first documents get new scores.

    It is read in pieces twice: for the lists that are scored, and to write it in its new order. `ranking`, `data` and
    `queries` are folders. The last contains the vectors of the ranking's queries.
    """

    def __init__(self, ranking: Path, data: Path, queries: Path, context: int = ALL) -> None:
        self._path, self._context = ranking / "ranking.parquet", context
        self._documents, self._queries = DocumentIds(data), QueryVectors(queries)

    def lists(self) -> Lists:
        """Return the first `context` documents of each query."""
        return Lists.joined(piece.lists(self._context) for piece in self._pieces())

    def write(self, scores: npt.NDArray, to: Path, k: int = ALL) -> tuple[int, int]:
        """Write the first k documents of each query in the new order.

        Return the number of rows, and the number of queries whose first document changed. `scores` are those of
        `lists`, list after list.
        """
        start = rows = changed = 0
        with replacing(to) as path, pq.ParquetWriter(path, RANKING) as writer:
            for piece in self._pieces():
                count = len(piece.lists(self._context).documents)
                table, moved = piece.reordered(scores[start : start + count], self._context)
                kept = table.filter(pc.less_equal(table["rank"], k))
                writer.write_table(kept)
                start, rows, changed = start + count, rows + len(kept), changed + moved
        return rows, changed

    def _pieces(self) -> Iterator[Ranked]:
        return (Ranked(piece, self._documents, self._queries) for piece in by_query(self._path, RANKING))


def list_scores(
    queries: QueryVectors, documents: DocumentVectors, lists: Lists, config: NeighboursConfig, device: str
) -> npt.NDArray[np.float32]:
    """Return the similarity (Q, N) of each query to the documents of its list (Eq. 1). Read vectors in batches.

    N is the length of the longest list. Values after the end of a shorter list are meaningless.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "queries.npy", np.eye(2, dtype=np.float32))
    >>> np.save(folder / "documents-0.npy", np.array([[0, 1], [2, 0], [3, 3]], np.float32))
    >>> (folder / "documents.json").write_text('{"documents-0.npy": 3}')
    22
    >>> (folder / "queries.json").write_text('["q0", "q1"]')
    12
    >>> vectors = QueryVectors(folder), DocumentVectors(folder)
    >>> lists = Lists(np.array([0, 1]), np.array([1, 2, 0, 2]), np.array([0, 2, 4]))  # two documents for each query
    >>> list_scores(*vectors, lists, NeighboursConfig(mix=1.0, geometric="none"), "cpu")
    array([[2., 3.],
           [1., 3.]], dtype=float32)
    """
    import torch

    from sparring.components.neighbours.reciprocal import scores

    mask, padded = torch.from_numpy(lists.mask).to(device), lists.padded(lists.documents)
    parts, batch = [], contexts_per_batch(padded.shape[1], device)
    with torch.inference_mode():
        for part, *arrays in context_vectors(queries, documents, lists.queries, padded, batch):
            query_vectors, document_vectors = (torch.from_numpy(array).to(device).float() for array in arrays)
            similar = scores(query_vectors, document_vectors, config, mask[part]).cpu().numpy()
            parts += [shared_by_copies(*arguments) for arguments in zip(similar, arrays[1], strict=True)]
    return np.stack(parts) if parts else np.empty((0, 0), np.float32)


def shared_by_copies(scores: npt.NDArray[np.float32], vectors: npt.NDArray) -> npt.NDArray[np.float32]:
    """Give each of N documents the score of the first document with the same vector.

    `scores` are (N,), `vectors` (N, d). Otherwise rounding could make two copies' scores differ in their last bits, and
    so decide their order.

    >>> shared_by_copies(np.array([0.5, 0.2, 0.500001], np.float32), np.array([[1, 0], [0, 1], [1, 0]]))
    array([0.5, 0.2, 0.5], dtype=float32)
    """
    first: dict[bytes, np.float32] = {}
    shared = (first.setdefault(vector.tobytes(), score) for vector, score in zip(vectors, scores, strict=True))
    return np.fromiter(shared, np.float32, len(scores))
