"""Rankings of a few queries as lists and as a table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparring.components.data.tables import RANKING

Ranking = list[tuple[str, float]]
"""Documents of a query: ids with scores, best first."""


def as_ranking(lists: Sequence[Ranking], names: Sequence[str] | None = None) -> pa.Table:
    """Join lists into one ranking table. If `names` is None, queries are named by their numbers."""
    names = [str(number) for number in range(len(lists))] if names is None else names
    rows = [
        (name, doc_id, rank, score)
        for name, ranking in zip(names, lists, strict=True)
        for rank, (doc_id, score) in enumerate(ranking, 1)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in RANKING]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RANKING, strict=True)]
    return pa.table(arrays, schema=RANKING)


def as_lists(ranking: pa.Table, queries: int) -> list[Ranking]:
    """Split a ranking table whose queries are named by their numbers into lists."""
    lists: list[Ranking] = [[] for _ in range(queries)]
    columns = (ranking[name].to_pylist() for name in ("query_id", "doc_id", "score"))
    for query, doc_id, score in zip(*columns, strict=True):
        lists[int(query)].append((doc_id, score))
    return lists


def reordered(ranking: Ranking, first: Ranking) -> Ranking:
    """Replace the first documents of a ranking by a new order. The remaining documents follow, with lower scores.

    >>> reordered([("a", 0.9), ("b", 0.8), ("c", 0.7)], [("b", 5.0), ("a", 4.0)])
    [('b', 5.0), ('a', 4.0), ('c', 3.0)]
    """
    lowest = min((score for _, score in first), default=0.0)
    return first + [(doc_id, lowest - number) for number, (doc_id, _) in enumerate(ranking[len(first) :], 1)]
