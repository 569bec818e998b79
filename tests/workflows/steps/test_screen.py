"""False-negative control as a step: every removed candidate has its reason, and what is left can be drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.retrieval.screening import ScreenConfig
from sparring.workflows.steps import screen as screening
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.screen import screen
from tests.support import toy


@pytest.fixture(scope="module")
def ranking(toys: Path) -> Path:
    """Scores fall by 1 from 99. q1 wants d1, q2 d2; d31 says what d1 says, d30 what d0 says. q0 is of another split."""
    lists = {
        "q1": ["d5", "d1", "d31", "d0", "d30", "d6", "d7", "d8"],
        "q2": ["d7", "d6", "d2", "d8"],
        "q4": ["d8", "d9", "d10"],  # its d4 was not found
        "q0": ["d0", "d1"],
    }
    return toy.write_ranking(toys / "to screen", lists)


@pytest.fixture
def screened(tmp_path: Path, data: Path, tokens: Path, ranking: Path) -> Any:
    """The reasons of q1, q2 and q4, by id of the document."""

    def run(
        place: str = "out",
        over: Path = ranking,
        votes: Path | None = None,
        vectors: Path | None = None,
        tokens: Path = tokens,
        **config: Any,
    ) -> dict[str, dict[str, str]]:
        (tmp_path / place).mkdir()
        run.summary = screen(  # type: ignore[attr-defined]
            tmp_path / place,
            toy.INLINE,
            data=data,
            tokens=tokens,
            ranking=over,
            split="train",
            votes=votes,
            vectors=vectors,
            config=ScreenConfig(**config),
        )
        drops: dict[str, dict[str, str]] = {}
        for row in pq.read_table(tmp_path / place / "ranking.parquet").to_pylist():
            drops.setdefault(row["query_id"], {})[row["doc_id"]] = row["reason"]
        return drops

    return run


def reasons(found: dict[str, dict[str, str]], query: str) -> dict[str, str]:
    return {document: reason for document, reason in found[query].items() if reason}


ALWAYS = {"d1": "qrel", "d31": "duplicate text", "d30": "duplicate text"}


def test_judged_documents_and_copies_are_always_named(screened: Any) -> None:
    drops = screened()
    assert list(drops) == ["q1", "q2", "q4"]
    assert reasons(drops, "q1") == ALWAYS
    assert reasons(drops, "q2") == {"d2": "qrel"}
    assert screened.summary == {
        "queries": 3,
        "before": 15,
        "after": 11,
        "removed": {"qrel": 2, "duplicate text": 2},
        "without_positive": 1,
    }


def test_margins_are_taken_to_the_positive(screened: Any) -> None:
    """q1's stands at 98, q2's at 97; of q4's nothing is known."""
    drops = screened(absolute=0.0)
    assert reasons(drops, "q1") == {**ALWAYS, "d5": "margin"}
    assert reasons(drops, "q2") == {"d2": "qrel", "d7": "margin", "d6": "margin"}
    assert reasons(drops, "q4") == {}
    drops = screened("other", relative=0.97)  # above 95.06, and above 94.09
    assert set(reasons(drops, "q1")) == {*ALWAYS, "d5", "d0"}
    assert set(reasons(drops, "q2")) == {"d2", "d7", "d6", "d8"}


def test_a_querys_own_document_and_its_copies_are_no_negatives(tmp_path: Path, data: Path) -> None:
    """Whether rankings are without it or not. d6 has the text of d5, which query q1 is."""
    dataset = toy.with_own(tmp_path / "data", data, [("q1", "d5")], left_out=False)
    same = np.arange(40)
    same[6] = 5
    np.save(tmp_path / "documents.same.npy", same)
    np.save(tmp_path / "queries.same.npy", np.arange(24))
    ranking = toy.write_ranking(tmp_path / "ranking", {"q1": ["d6", "d5", "d7"], "q2": ["d5"]})
    out = tmp_path / "out"
    out.mkdir()
    screen(
        out,
        toy.INLINE,
        data=dataset,
        tokens=tmp_path,
        ranking=ranking,
        split="train",
        votes=None,
        vectors=None,
        config=ScreenConfig(),
    )
    reasons = pq.read_table(out / "ranking.parquet")["reason"].to_pylist()
    assert reasons == ["own document", "own document", "", ""]


def test_what_answers_a_query_with_the_same_text_is_relevant(screened: Any, tmp_path: Path, twins: Path) -> None:
    """Both q1's d1 and q2's d2 are relevant to both; d31 says what d1 says."""
    over = toy.write_ranking(tmp_path / "over", {"q1": ["d5", "d2", "d1"], "q2": ["d31", "d7", "d2"], "q4": ["d1"]})
    assert screened(over=over) == {
        "q1": {"d5": "", "d2": "", "d1": "qrel"},
        "q2": {"d31": "", "d7": "", "d2": "qrel"},
        "q4": {"d1": ""},
    }
    assert screened("twins", over, tokens=twins) == {
        "q1": {"d5": "", "d2": "qrel", "d1": "qrel"},
        "q2": {"d31": "duplicate text", "d7": "", "d2": "qrel"},
        "q4": {"d1": ""},
    }


def test_answers_are_a_reason(screened: Any, ranking: Path, tmp_path: Path) -> None:
    table = pq.read_table(ranking / "ranking.parquet")
    hits = pa.array([doc_id in ("d5", "d1", "d9") for doc_id in table["doc_id"].to_pylist()])
    (tmp_path / "answered").mkdir()
    pq.write_table(table.append_column("hit", hits), tmp_path / "answered/ranking.parquet")
    drops = screened(over=tmp_path / "answered", answering=True)
    assert reasons(drops, "q1") == {**ALWAYS, "d5": "answer"}
    assert reasons(drops, "q4") == {"d9": "answer"}
    assert "hit" in pq.read_schema(tmp_path / "out/ranking.parquet").names  # whoever draws positives by it needs it
    with pytest.raises(ValueError, match="no column 'hit'"):
        screened("none", answering=True)


def test_the_ranker_has_a_vote_as_deep_as_it_was_asked(screened: Any, tmp_path: Path) -> None:
    """Scores are logits: above ln 9 is above 9 in 10."""
    rows = [("q1", "d6", 2.3), ("q1", "d5", 2.1), ("q1", "d1", 5.0), ("q2", "d8", 9.0), ("q4", "d10", 9.0)]
    columns = {
        "query_id": [row[0] for row in rows],
        "doc_id": [row[1] for row in rows],
        "rank": pa.array(range(1, 6), pa.int32()),
        "score": pa.array([row[2] for row in rows], pa.float32()),
    }
    (tmp_path / "votes").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "votes/ranking.parquet")
    drops = screened(votes=tmp_path / "votes", vote={"above": 0.9, "depth": 3})
    assert reasons(drops, "q1") == ALWAYS  # d6 stands at rank 6
    assert reasons(drops, "q2") == {"d2": "qrel"}  # d8 at rank 4
    assert reasons(drops, "q4") == {"d10": "ranker's vote"}
    drops = screened("deep", votes=tmp_path / "votes", vote={"above": 0.9})
    assert reasons(drops, "q1") == {**ALWAYS, "d6": "ranker's vote"}


def test_reciprocal_neighbours_of_relevant_documents_found_or_not(screened: Any, tmp_path: Path, data: Path) -> None:
    """Vectors on a line of angles: d6 stands next to d1, d9 next to d4, which was not found; d7 is nearer to d6."""
    angle = {f"d{i}": 3.0 + 0.01 * i for i in range(40)}
    angle |= {"d1": 0.0, "d6": 0.1, "d7": 0.15, "d4": 1.0, "d9": 1.1}
    vectors = tmp_path / "vectors"
    vectors.mkdir()
    turned = [[np.cos(angle[f"d{i}"]), np.sin(angle[f"d{i}"])] for i in range(40)]
    toy.write_document_vectors(vectors, [np.asarray(turned, np.float32)])
    drops = screened(vectors=vectors, reciprocal=1)
    assert reasons(drops, "q1") == ALWAYS  # d6's nearest is d7
    assert reasons(drops, "q4") == {"d9": "reciprocal neighbour"}
    drops = screened("two", vectors=vectors, reciprocal=2)
    assert reasons(drops, "q1") == {**ALWAYS, "d6": "reciprocal neighbour", "d7": "reciprocal neighbour"}


def test_some_cases_of_each_reason_are_kept_for_people(screened: Any, tmp_path: Path) -> None:
    screened(absolute=0.0)
    cases = json.loads((tmp_path / "out/cases.json").read_text())
    assert [case["reason"] for case in cases] == ["qrel"] * 2 + ["duplicate text"] * 2 + ["margin"] * 3
    case = next(case for case in cases if case["reason"] == "margin" and case["query_id"] == "q1")
    assert case == {
        "reason": "margin",
        "query_id": "q1",
        "doc_id": "d5",
        "rank": 1,
        "score": 99.0,
        "positive": "d1",
        "positive_score": 98.0,
        "copy_of": None,
    }
    assert {case["doc_id"]: case["copy_of"] for case in cases if case["reason"] == "duplicate text"} == {
        "d31": "d1",
        "d30": "d0",
    }


def test_what_passed_is_what_is_drawn(screened: Any, tmp_path: Path, data: Path, tokens: Path) -> None:
    screened(absolute=0.0)
    (tmp_path / "groups").mkdir()
    mine(
        tmp_path / "groups",
        toy.INLINE,
        data=data,
        tokens=tokens,
        ranking=tmp_path / "out",
        split="train",
        groups=30,
        seed=[1],
        config=MineConfig(negatives=2),
    )
    negatives: dict[str, set[str]] = {}
    for row in pq.read_table(tmp_path / "groups/groups.parquet").to_pylist():
        negatives.setdefault(row["query_id"], set()).update(row["doc_ids"][1:])
    assert negatives["q1"] == {"d0", "d6", "d7", "d8"}
    assert negatives["q2"] > {"d8"}  # the other one is drawn at random
    assert not negatives["q2"] & {"d2"}


def test_no_ranking_no_cases(screened: Any, tmp_path: Path) -> None:
    empty = toy.write_ranking(tmp_path / "empty", {"q0": ["d1"]})
    assert screened(over=empty, absolute=0.0) == {}
    assert screened.summary["before"] == 0


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_ranking_is_looked_at_in_pieces(
    screened: Any, ranking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Queries are never cut: reasons, counts and cases are those of the whole."""
    whole, summary = screened(absolute=0.0), screened.summary
    monkeypatch.setattr(screening, "ROWS", rows)
    assert screened("pieces", absolute=0.0) == whole
    assert screened.summary == summary
    assert len({(tmp_path / place / "cases.json").read_text() for place in ("out", "pieces")}) == 1
