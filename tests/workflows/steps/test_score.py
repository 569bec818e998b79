"""A ranker's scores: groups judged, rankings reordered; each pair as if it were scored alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.tables import GROUPS, RANKING, check
from sparring.workflows.steps import score as module
from sparring.workflows.steps.score import RerankConfig, ScoreConfig, rerank, score_groups
from sparring.workflows.steps.start import start
from tests.support import toy
from tests.support.machines import changed
from tests.support.power_cut import PowerCut, cut_power

ROWS = [
    {"query_id": "q4", "visit": 1, "doc_ids": ["d4", "d9", "d30"]},
    {"query_id": "q1", "visit": 0, "doc_ids": ["d1"]},
    {"query_id": "q4", "visit": 2, "doc_ids": ["d4", "d7"], "targets": [0.5, 0.0]},  # a pair for the second time
    {"query_id": "q0", "visit": 0, "doc_ids": ["d39", "d0", "d8", "d2"], "teacher": [1.0, 2.0, 3.0, 4.0]},
]


@pytest.fixture(scope="module")
def alone(data: Path, tokens: Path, ranker: Path) -> Callable[[str, str], float]:
    """The score of one pair, by itself."""
    from sparring.components.data.token_store import TokenStore
    from sparring.components.models.cross_encoder import CrossEncoder

    model = CrossEncoder.load(ranker / "model").eval()
    store = TokenStore(tokens, ranker / "model")

    def scored(query: str, document: str) -> float:
        row = np.array([[int(query[1:]), int(document[1:])]])
        with torch.no_grad():
            batch = store.template.pairs(store.queries, store.documents, row, model.config.pair_tokens)
            return float(model(batch)[0])

    return scored


@pytest.fixture
def judged(tmp_path: Path, data: Path, tokens: Path, ranker: Path) -> Any:
    def run(name: str, rows: list[dict[str, Any]], *, machine: Any = toy.INLINE, **config: Any) -> list[dict[str, Any]]:
        groups = toy.write_groups(tmp_path / "groups", rows)
        out = tmp_path / name
        out.mkdir(exist_ok=True)
        run.summary = score_groups(  # type: ignore[attr-defined]
            out,
            machine,
            data=data,
            tokens=tokens,
            groups=groups,
            ranker=ranker,
            config=ScoreConfig(**{"precision": "fp32", **config}),
        )
        return check(pq.read_table(out / "groups.parquet"), GROUPS, source="groups").to_pylist()

    return run


def test_judging_scores_each_pair_as_alone_and_changes_nothing_else(judged: Any, alone: Any) -> None:
    rows = judged("out", ROWS)
    assert judged.summary["pairs"] == 10
    for row, before in zip(rows, ROWS, strict=True):
        assert row["teacher"] == pytest.approx([alone(row["query_id"], d) for d in row["doc_ids"]], abs=1e-5)
        assert (row["query_id"], row["visit"], row["doc_ids"]) == (
            before["query_id"],
            before["visit"],
            before["doc_ids"],
        )
    assert rows[2]["targets"] == [0.5, 0.0]
    assert len({score for row in rows for score in row["teacher"]}) > 6


def pairs_of(scorer: Any, task: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the rows of a query and a document of each pair of a shard."""
    return [(int(query), int(document)) for query, document in scorer._pairs[task["start"] : task["stop"]]]


@pytest.mark.parametrize(("shard", "batch"), [(1, 8), (4, 64), (9, 100), (1000, 4096)])
def test_shards_and_batches_do_not_matter_and_each_pair_is_scored_once(
    judged: Any, monkeypatch: pytest.MonkeyPatch, shard: int, batch: int
) -> None:
    wanted = judged("wanted", ROWS)
    calls = cut_power(monkeypatch, module.Scorer, "prepare", after=None, note=pairs_of)
    machine = changed(toy.INLINE, {"max_tokens_per_pass": batch})
    rows = judged("found", ROWS, machine=machine, shard=shard)
    seen = [pair for pairs in calls for pair in pairs]
    assert len(seen) == len(set(seen)) == 9  # q4 with d4 stands twice
    for a, b in zip(rows, wanted, strict=True):
        assert a["teacher"] == pytest.approx(b["teacher"], abs=1e-5)


def test_an_interrupted_judging_does_only_what_is_left(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as power:
        cut_power(power, module.Scorer, "prepare", after=2)
        with pytest.raises(PowerCut):
            judged("out", ROWS, shard=2)
    with monkeypatch.context() as counting:
        calls = cut_power(counting, module.Scorer, "prepare", after=None, note=pairs_of)
        rows = judged("out", ROWS, shard=2)
    assert sum(map(len, calls)) == 5
    for a, b in zip(rows, judged("wanted", ROWS), strict=True):
        assert a["teacher"] == pytest.approx(b["teacher"], abs=1e-5)


def test_half_precision_is_near(judged: Any) -> None:
    full, half = judged("full", ROWS), judged("half", ROWS, precision="bf16")
    for a, b in zip(full, half, strict=True):
        assert a["teacher"] == pytest.approx(b["teacher"], abs=0.05)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_teacher_is_frozen_and_its_scores_are_no_half_precision_numbers(
    tmp_path: Path, encoder: Path, data: Path, tokens: Path, pooling: str
) -> None:
    """Twice the same with dropout in the model; and not rounded to 8 bits, where documents would tie."""
    (model := tmp_path / "ranker").mkdir()
    start(model, toy.INLINE, config=toy.ranker_config(encoder, pooling=pooling, dropout=0.5))
    groups, teachers = toy.write_groups(tmp_path / "groups", ROWS), []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        score_groups(
            tmp_path / name, toy.INLINE, data=data, tokens=tokens, groups=groups, ranker=model, config=ScoreConfig()
        )
        rows = pq.read_table(tmp_path / name / "groups.parquet").to_pylist()
        teachers.append([score for row in rows for score in row["teacher"]])
    assert teachers[0] == teachers[1]
    scores = torch.tensor(teachers[0])
    assert (scores != scores.bfloat16().float()).any()


FOUND = {
    "q0": [f"d{k}" for k in (5, 3, 8, 0, 20, 21, 22)],
    "q1": ["d1"],  # not of the split
    "q6": ["d7", "d6", "d9"],
    "q18": ["d1", "d31", "d18", "d2", "d4", "d5"],  # d31 says what d1 says: a tie
}


@pytest.fixture
def reranked(tmp_path: Path, data: Path, tokens: Path, ranker: Path) -> Any:
    def run(found: dict[str, list[str]], **config: Any) -> dict[str, list[dict[str, Any]]]:
        ranking = toy.write_ranking(tmp_path / "ranking", found)
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        run.summary = rerank(  # type: ignore[attr-defined]
            out,
            toy.INLINE,
            data=data,
            tokens=tokens,
            ranking=ranking,
            split="test",
            ranker=ranker,
            config=RerankConfig(**{"precision": "fp32", **config}),
        )
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in check(pq.read_table(out / "ranking.parquet"), RANKING, source="ranking").to_pylist():
            rows.setdefault(row["query_id"], []).append(row)
        return rows

    return run


def test_the_first_documents_come_in_the_rankers_order(reranked: Any, alone: Any) -> None:
    rows = reranked(FOUND)
    assert list(rows) == ["q0", "q6", "q18"]  # the split's queries in the table's order
    for query, ranked in rows.items():
        assert [row["rank"] for row in ranked] == list(range(1, len(FOUND[query]) + 1))
        assert {row["doc_id"] for row in ranked} == set(FOUND[query])
        scores = [alone(query, row["doc_id"]) for row in ranked]
        assert [row["score"] for row in ranked] == pytest.approx(scores, abs=1e-5)
        assert all(a["score"] >= b["score"] for a, b in itertools.pairwise(ranked))
    assert any([row["doc_id"] for row in rows[query]] != FOUND[query] for query in rows)
    assert (reranked.summary["pairs"], reranked.summary["queries"]) == (16, 3)


def test_equal_scores_stay_in_their_order(reranked: Any) -> None:
    for order in (["d1", "d31", "d18", "d2"], ["d2", "d31", "d18", "d1"]):
        rows = reranked({"q18": order})["q18"]
        names = [row["doc_id"] for row in rows]
        tied = [row["score"] for row in rows if row["doc_id"] in ("d1", "d31")]
        assert tied[0] == tied[1]
        assert (names.index("d1") < names.index("d31")) == (order.index("d1") < order.index("d31"))


def test_what_lies_beyond_the_depth_follows_in_its_old_order(reranked: Any, alone: Any) -> None:
    rows = reranked(FOUND, depth=3)
    for query, ranked in rows.items():
        head, tail = ranked[:3], ranked[3:]
        assert {row["doc_id"] for row in head} == set(FOUND[query][:3])
        assert [row["doc_id"] for row in tail] == FOUND[query][3:]
        assert [row["rank"] for row in ranked] == list(range(1, len(ranked) + 1))
        scores = [row["score"] for row in ranked]
        assert all(a > b for a, b in itertools.pairwise(scores[2:]))
        assert [row["score"] for row in head] == pytest.approx([alone(query, row["doc_id"]) for row in head], abs=1e-5)
    assert reranked.summary["pairs"] == 9


def test_nothing_to_rerank_is_an_empty_ranking(reranked: Any) -> None:
    assert reranked({"q1": ["d1"]}) == {}
