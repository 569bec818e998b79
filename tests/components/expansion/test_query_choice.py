"""Answer ranks, the choice of an expansion, and the ranking that comes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.data.tables import ANSWERED, EXPANSIONS, QRELS, RANKING
from sparring.components.expansion import expansions
from sparring.components.expansion.query_choice import answer_ranks, as_ranking, choose, mark_relevant
from sparring.components.retrieval.fusion import FusionConfig

TABLE = pa.Table.from_pylist(
    expansions.rows("q1", ["a", "b", "b", "c"]) + expansions.rows("q0", ["d", "e"]), schema=EXPANSIONS
)


def ranking(found: dict[str, str], hits: str = "") -> pa.Table:
    """A ranking of one-letter documents, those of `hits` bearing an answer."""
    rows = [
        {"query_id": query, "doc_id": item, "rank": rank, "score": -float(rank), "hit": item in hits}
        for query, documents in found.items()
        for rank, item in enumerate(documents, 1)
    ]
    return pa.Table.from_pylist(rows, schema=ANSWERED if hits else RANKING)


def test_the_minimum_answer_rank() -> None:
    result = ranking({"q1#1": "xyz", "q1#2": "yx", "q0#1": "u", "q0#2": "uvzx"}, hits="zx")
    ranks = answer_ranks(TABLE, result).to_pylist()
    assert [(row["doc_id"], row["query_id"], row["rank"]) for row in ranks] == [
        ("q1#1", "q1", 1),
        ("q1#2", "q1", 2),
        ("q1#4", "q1", None),
        ("q0#1", "q0", None),
        ("q0#2", "q0", 3),
    ]


def test_by_judgements_what_is_relevant_is_a_hit() -> None:
    result = ranking({"q1#1": "xyz", "q0#1": "xz"})
    rows = [("q1#1", "y", 1), ("q1#1", "x", 0), ("q0#1", "q", 2)]
    qrels = pa.Table.from_pylist(
        [{"query_id": q, "doc_id": d, "relevance": r, "split": "test"} for q, d, r in rows], schema=QRELS
    )
    assert mark_relevant(result, qrels)["hit"].to_pylist() == [False, True, False, False, False]
    assert mark_relevant(result, qrels).select(RANKING.names) == result


def test_the_lowest_predicted_rank_is_chosen_and_the_first_of_equals() -> None:
    scores = np.array([3.0, 1.0, 1.0, np.inf, np.inf])
    assert choose(TABLE, scores)["doc_id"].to_pylist() == ["q1#2", "q0#1"]
    assert choose(TABLE, -scores)["doc_id"].to_pylist() == ["q1#1", "q0#1"]
    assert choose(TABLE, scores)["score"].to_pylist() == [1.0, np.inf]


@pytest.mark.parametrize(("number", "wanted"), [(1, ["q1#1", "q0#1"]), (3, ["q1#2", "q0#2"]), (4, ["q1#4", "q0#2"])])
def test_fewer_candidates_are_the_first_that_were_generated(number: int, wanted: list[str]) -> None:
    """q1's third said what its second had said: of three there are two to choose from."""
    assert choose(TABLE, np.array([3.0, 2.0, 1.0, 9.0, 8.0]), number)["doc_id"].to_pylist() == wanted


def test_several_are_chosen_best_first() -> None:
    choices = choose(TABLE, np.array([3.0, 2.0, 1.0, 8.0, 9.0]), most=2)
    assert choices["doc_id"].to_pylist() == ["q1#4", "q1#2", "q0#1", "q0#2"]
    assert choices["score"].to_pylist() == [1.0, 2.0, 8.0, 9.0]
    assert len(choose(TABLE, np.zeros(5), most=100)) == 5


def test_nothing_to_choose_from() -> None:
    assert len(choose(EXPANSIONS.empty_table(), np.empty(0))) == 0
    assert len(choose(EXPANSIONS.empty_table(), np.empty(0), most=2)) == 0


def test_several_choices_rankings_are_fused_best_first() -> None:
    choices = choose(TABLE, np.array([3.0, 2.0, 1.0, 8.0, 9.0]), most=2)
    result = ranking({"q1#1": "kkk", "q1#2": "xyw", "q1#4": "yz", "q0#2": "u"})
    whole = as_ranking(choices, result, ranking({"q7": "mn", "q1": "n", "q0": "o"}), FusionConfig(depth=3))
    rows = [(row["query_id"], row["doc_id"], row["rank"]) for row in whole.to_pylist()]
    assert rows == [("q7", "m", 1), ("q7", "n", 2), ("q1", "y", 1), ("q1", "x", 2), ("q1", "z", 3), ("q0", "u", 1)]


def test_a_choices_ranking_is_its_querys() -> None:
    choices = choose(TABLE, np.array([3.0, 2.0, 1.0, 9.0, 8.0]))
    result = ranking({"q1#1": "x", "q1#4": "yz", "q0#2": "u"})
    plain = ranking({"q7": "m", "q1": "n", "q0": "o"})
    whole = as_ranking(choices, result, plain)
    assert whole.schema.equals(RANKING)
    rows = [(row["query_id"], row["doc_id"], row["rank"]) for row in whole.to_pylist()]
    assert rows == [("q7", "m", 1), ("q1", "y", 1), ("q1", "z", 2), ("q0", "u", 1)]


def test_a_choice_that_finds_nothing_has_no_ranking(tmp_path: Path) -> None:
    """It is the query that was issued: what the plain one finds takes no place of it."""
    choices = choose(TABLE, np.array([3.0, 2.0, 1.0, 9.0, 8.0]))
    whole = as_ranking(choices, ranking({"q0#2": "u"}), ranking({"q1": "n", "q0": "o"}))
    assert [(row["query_id"], row["doc_id"]) for row in whole.to_pylist()] == [("q0", "u")]
