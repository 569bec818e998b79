"""How a ranking changes from one refresh to the next."""

import math

import pyarrow as pa

from sparring.components.evaluation.refreshes import bands, median_rank, overlap, shares_by_band, top


def ranking(**lists: str) -> pa.Table:
    """Rankings of queries, a document a letter."""
    rows = [(query, document, rank) for query, subject in lists.items() for rank, document in enumerate(subject, 1)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=["query_id", "doc_id", "rank"])


def test_overlap_looks_at_sets_and_at_the_queries_of_both() -> None:
    before, after = top(ranking(p="abcd", q="abcd", gone="abcd"), 3), top(ranking(p="cbaz", q="xyab", new="abcd"), 3)
    assert overlap(before, after) == (1 + 1 / 3) / 2
    assert overlap(before, before) == 1
    assert overlap({}, after) is None


def test_shares_add_up_to_one_whatever_the_depth() -> None:
    ranks = [1, 1, 2, 6, 20, 21, 100, None]
    for depth in (1, 3, 20, 100):
        result = [rank if rank is not None and rank <= depth else None for rank in ranks]
        shares = shares_by_band(result, depth)
        assert math.isclose(sum(shares), 1)
        assert len(shares) == len(bands(depth)) + 1
    assert shares_by_band(ranks, 100) == [2 / 8, 1 / 8, 2 / 8, 2 / 8, 1 / 8]


def test_not_found_is_behind_all_ranks() -> None:
    assert median_rank([3, 5, None, None, 1]) == 5
    assert median_rank([None]) == math.inf
    assert median_rank([]) == math.inf
