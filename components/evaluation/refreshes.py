"""Changes of a ranking from one refresh to the next, as they matter for the negatives that are sampled from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import pyarrow as pa

BOUNDS = (1, 5, 20)
"""The last ranks of the first bands."""


def top(ranking: pa.Table, k: int) -> dict[str, set[str]]:
    """query -> its first k documents."""
    firsts: dict[str, set[str]] = {}
    columns = (ranking[name].to_pylist() for name in ("query_id", "doc_id", "rank"))
    for query, document, rank in zip(*columns, strict=True):
        if rank <= k:
            firsts.setdefault(query, set()).add(document)
    return firsts


def overlap(before: Mapping[str, set[str]], after: Mapping[str, set[str]]) -> float | None:
    """Return the mean share of the documents in `after` that are in `before`, over the queries of both, or None.

    >>> overlap({"q": {"a", "b"}}, {"q": {"b", "c"}, "r": {"a"}})
    0.5
    """
    shares = [len(after[query] & before[query]) / len(after[query]) for query in after.keys() & before.keys()]
    return math.fsum(shares) / len(shares) if shares else None


def bands(depth: int) -> list[tuple[int, int]]:
    """Return the first and last rank of each band of a list of `depth`.

    >>> bands(100), bands(5)
    ([(1, 1), (2, 5), (6, 20), (21, 100)], [(1, 1), (2, 5)])
    """
    ends = [*(end for end in BOUNDS if end < depth), depth]
    return list(zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True))


def shares_by_band(ranks: Sequence[int | None], depth: int) -> list[float]:
    """Return the share of ranks in each band of `bands`, and last the share of None: documents not retrieved.

    >>> shares_by_band([1, 1, 3, None], 5)
    [0.5, 0.25, 0.25]
    """
    retrieved = [rank for rank in ranks if rank is not None]
    counts = [sum(first <= rank <= last for rank in retrieved) for first, last in bands(depth)]
    return [count / max(1, len(ranks)) for count in (*counts, len(ranks) - len(retrieved))]


def median_rank(ranks: Sequence[int | None]) -> float:
    """Return the median rank. Documents not retrieved are behind all others, so the median may be infinite.

    >>> median_rank([1, 4, None]), median_rank([2, None, None])
    (4, inf)
    """
    return median(math.inf if rank is None else rank for rank in ranks) if ranks else math.inf
