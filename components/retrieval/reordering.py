"""Reorders the first documents of a ranking by new scores."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.groups import ids_of, measured_queries, rows_of
from sparring.components.data.tables import RANKING, TEXT, of_queries


class ShortLists(NamedTuple):
    """The first documents of the measured queries' rankings, and what follows them."""

    wanted: pa.Array
    """Ids of the measured queries."""
    top: pa.Table
    """The pairs to score, as rows of a ranking."""
    rest: pa.Table
    queries: np.ndarray
    """Row of each pair's query in the collection: (N,)."""
    documents: np.ndarray
    """Row of each pair's document: (N,)."""

    @classmethod
    def read(cls, ranking: Path, data: Path, split: str, *, depth: int, queries: int | None) -> "ShortLists":
        """Read the first `depth` documents of a split's queries, or of a sample of them."""
        wanted = pa.array(measured_queries(data, split, queries), TEXT)
        table = of_queries(ranking / "ranking.parquet", RANKING, wanted)
        first = pc.less_equal(table["rank"], depth)
        top = table.filter(first)
        return cls(
            wanted,
            top,
            table.filter(pc.invert(first)),
            rows_of(top["query_id"], ids_of(data / "queries.parquet", "query_id"), source=str(ranking)),
            rows_of(top["doc_id"], ids_of(data / "documents.parquet", "doc_id"), source=str(ranking)),
        )

    def reordered(self, scores: np.ndarray) -> pa.Table:
        """Return the ranking with the first documents in the order of their scores (N,). Documents with equal scores
        keep their order.

        The remaining documents follow in their old order, with scores below the lowest.
        """
        lowest = float(scores.min()) if len(scores) else 0.0
        behind = pa.array(lowest - self.rest["rank"].to_numpy().astype(np.float32), pa.float32())
        table = pa.concat_tables(
            [
                self.top.set_column(3, "score", pa.array(scores)).append_column("before", self.top["rank"]),
                self.rest.set_column(3, "score", behind).append_column("before", self.rest["rank"]),
            ]
        )
        place = pc.index_in(table["query_id"], value_set=self.wanted)
        table = table.append_column("place", place)
        table = table.sort_by([("place", "ascending"), ("score", "descending"), ("before", "ascending")])
        ranks = row_runs.ranks(table["place"].to_numpy()) + 1
        return table.set_column(2, "rank", pa.array(ranks, pa.int32())).select(RANKING.names)
