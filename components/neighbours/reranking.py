"""A ranking whose first documents get a new order by reciprocal nearest neighbours (paper 003, section 3.1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.groups import ids_of, places_of, rows_of
from components.neighbours import NeighboursConfig, at_once
from components.tables import RANKING, check
from components.vectors import Lists, Vectors, query_rows


class Ranked:
    """A ranking, and where the vectors of its queries and documents stand."""

    def __init__(self, table: pa.Table, data: Path, vectors: Path) -> None:
        self._table = table
        doc_ids = ids_of(data / "documents.parquet", "doc_id")
        self._rows = rows_of(table["doc_id"], doc_ids, what="ranking")
        self._places = places_of(doc_ids)[1][self._rows]
        self._ranks = table["rank"].to_numpy()
        self._begins, self._number = np.flatnonzero(self._ranks == 1), np.cumsum(self._ranks == 1) - 1
        self._queries = query_rows(vectors, table["query_id"].take(self._begins))

    def __len__(self) -> int:
        return len(self._begins)

    def lists(self, context: int) -> Lists:
        """The first so many documents of each query."""
        first = self._ranks <= context
        offsets = np.searchsorted(self._number[first], np.arange(len(self) + 1))
        return Lists(self._queries, self._rows[first], offsets)

    def reordered(self, scores: npt.NDArray, context: int) -> tuple[pa.Table, int]:
        """The ranking by new scores of its first documents, list after list, and how many queries' first is another.

        Documents beyond them follow in their old order, with scores below the last. Ties are in order of doc_id.
        """
        first, all_scores = self._ranks <= context, np.empty(len(self._rows), np.float32)
        all_scores[first] = scores
        if len(self):
            starts = np.searchsorted(self._number[first], np.arange(len(self)))
            lowest = np.minimum.reduceat(scores, starts)
            all_scores[~first] = (lowest[self._number] - (self._ranks - context))[~first]
        order = np.lexsort((self._places, -all_scores, self._number))
        changed = int((order[self._begins] != self._begins).sum())
        table = self._table
        columns = [table["query_id"], table["doc_id"].take(order), table["rank"], pa.array(all_scores[order])]
        return check(pa.table(columns, names=RANKING.names), RANKING, what="ranking"), changed


def list_scores(vectors: Vectors, lists: Lists, config: NeighboursConfig, device: str) -> npt.NDArray[np.float32]:
    """(Q, N) the scores of lists of documents by their neighbours (Eq. 1), of no meaning behind the shorter lists."""
    import torch

    from components.neighbours import scores

    there, documents = torch.from_numpy(lists.there).to(device), lists.padded(lists.documents)
    found = []
    with torch.inference_mode():
        for part, *held in vectors.contexts(lists.queries, documents, at_once(documents.shape[1], device)):
            asked, answered = (torch.from_numpy(one).to(device).float() for one in held)
            found.append(scores(asked, answered, config, there[part]))
    return torch.cat(found).cpu().numpy() if found else np.empty((0, 0), np.float32)
