"""A gate opens for a ranker that is better than the ranking it reads, and stays shut for any other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparring.components.data.tables import QRELS, RANKING
from sparring.components.evaluation.gate import GateConfig, decide, is_open, write_decision

QUERIES = [f"q{n}" for n in range(30)]
QRELS_OF_ALL = pa.table(
    [QUERIES, ["d0"] * 30, [1] * 30, ["dev"] * 30],
    schema=pa.schema([QRELS.field(name) for name in ("query_id", "doc_id", "relevance", "split")]),
)


def ranking(places: list[int]) -> pa.Table:
    """For each query ten documents, the relevant one at a place from 1."""
    rows = []
    for query, place in zip(QUERIES, places, strict=False):
        rest = iter(range(1, 10))
        ordered = ["d0" if number == place else f"d{next(rest)}" for number in range(1, 11)]
        rows += [(query, doc, rank, 1.0 / rank) for rank, doc in enumerate(ordered, 1)]
    return pa.table(list(zip(*rows, strict=True)), schema=RANKING)


@pytest.mark.parametrize(
    ("places", "level", "opens"),
    [
        ([1] * 30, 0.05, True),
        ([2] * 28 + [1] * 2, 0.05, False),  # better, and not by enough queries
        ([2] * 28 + [1] * 2, 1.0, True),
        ([2] * 30, 1.0, False),  # the same
        ([3] * 30, 1.0, False),
    ],
)
def test_a_gate(places: list[int], level: float, opens: bool) -> None:
    result = decide(ranking([2] * 30), ranking(places), QRELS_OF_ALL, "RR@10", GateConfig(level=level))
    assert result["open"] is opens
    assert (result["ranking"], result["queries"]) == (0.5, 30)
    assert result["ranker"] == pytest.approx(sum(1 / place for place in places) / 30)


def test_only_reranked_queries_count() -> None:
    before = ranking([1] * 10 + [2] * 20)
    result = decide(before, ranking([2] * 10), QRELS_OF_ALL, "RR@10", GateConfig(level=1.0))
    assert (result["ranking"], result["ranker"], result["queries"], result["open"]) == (1.0, 0.5, 10, False)


def test_a_decision_is_read_as_it_was_written(tmp_path: Path) -> None:
    for opened in (True, False):
        write_decision(tmp_path, {"open": opened})
        assert is_open(tmp_path) is opened
