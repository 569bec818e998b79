"""The ranker's scores with those of the rankings beside them: rankings, groups, and who may flatter whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import GROUPS, QRELS, RANKING, read, write
from sparring.workflows.steps.prior import add_prior, fit_prior, teach_with_prior
from tests.support import toy

DEPTH = 4
QUERIES = [f"q{n}" for n in range(40)]


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Any]:
    """Rankings by a ranker (depth 4 of 6), a retriever and BM25 of queries whose relevant document the retriever and
    the ranker each half know."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[str, str, int, float]]] = {"reranked": [], "retriever": [], "bm25": []}
    qrels = []
    for query in QUERIES:
        truth = rng.normal(size=6)
        qrels.append({"query_id": query, "doc_id": f"d{truth[:DEPTH].argmax()}", "relevance": 1, "split": "dev"})
        for name in rows:
            scores = truth + rng.normal(size=6)
            if name == "reranked":
                scores[DEPTH:] = scores.min() - 1 - np.arange(2)
            shown = np.argsort(-scores) if name != "bm25" else np.argsort(-scores)[:3]
            rows[name] += [(query, f"d{d}", rank, float(scores[d])) for rank, d in enumerate(shown, 1)]
    for name, hits in rows.items():
        (tmp_path / name).mkdir()
        table = pa.table(list(zip(*hits, strict=True)), schema=RANKING)
        write(tmp_path / name / "ranking.parquet", table, RANKING)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "qrels.parquet", pa.Table.from_pylist(qrels, schema=QRELS), QRELS)
    lexical_k = {"retriever": None, "bm25": 100}
    priors = [{"name": name, "ranking": tmp_path / name, "lexical_k": k} for name, k in lexical_k.items()]
    return {"data": tmp_path / "data", "reranked": tmp_path / "reranked", "priors": priors}


def fitted(world: dict[str, Any], out: Path) -> dict[str, float]:
    out.mkdir()
    fit_prior(out, toy.INLINE, **world, split="dev", depth=DEPTH)
    weights: dict[str, float] = json.loads((out / "weights.json").read_text())
    return weights


def score_of(ranking: Path, depth: int = 100) -> dict[tuple[str, str], float]:
    table = read(ranking / "ranking.parquet", RANKING).to_pylist()
    return {(row["query_id"], row["doc_id"]): row["score"] for row in table if row["rank"] <= depth}


def summed(world: dict[str, Any], weights: dict[str, float], query: str, document: str) -> float:
    """The score of one pair, by a loop."""
    total = weights["ranker"] * score_of(world["reranked"])[query, document]
    for prior in world["priors"]:
        scores = {doc: score for (query_id, doc), score in score_of(prior["ranking"]).items() if query_id == query}
        absent = 0.0 if prior["name"] == "bm25" else min(scores.values())
        total += weights[prior["name"]] * scores.get(document, absent)
    return total


def test_the_first_documents_are_in_the_order_of_the_sums_and_the_others_follow(
    world: dict[str, Any], tmp_path: Path
) -> None:
    weights = fitted(world, tmp_path / "weights")
    assert list(weights) == ["ranker", "retriever", "bm25"]
    assert min(weights.values()) > 0
    (tmp_path / "out").mkdir()
    inputs = {name: world[name] for name in ("reranked", "priors")}
    add_prior(tmp_path / "out", toy.INLINE, **inputs, weights=tmp_path / "weights", depth=DEPTH)
    table = read(tmp_path / "out" / "ranking.parquet", RANKING).to_pylist()
    for query in QUERIES[:5]:
        rows = [row for row in table if row["query_id"] == query]
        before = [
            row for row in read(world["reranked"] / "ranking.parquet", RANKING).to_pylist() if row["query_id"] == query
        ]
        sums = {row["doc_id"]: summed(world, weights, query, row["doc_id"]) for row in before[:DEPTH]}
        expected = sorted(sums, key=lambda doc: -sums[doc]) + [row["doc_id"] for row in before[DEPTH:]]
        assert [row["doc_id"] for row in rows] == expected
        assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert [row["score"] for row in rows[:DEPTH]] == pytest.approx(sorted(sums.values(), reverse=True), rel=1e-5)
        assert rows[DEPTH]["score"] < rows[DEPTH - 1]["score"]


def test_dev_queries_are_ranked_by_weights_of_the_other_half(world: dict[str, Any], tmp_path: Path) -> None:
    """A query whose labels are turned around changes the others' order and not its own half's weights."""
    fitted(world, tmp_path / "before")
    qrels = read(world["data"] / "qrels.parquet", QRELS).to_pylist()
    qrels[0]["doc_id"] = f"d{(int(qrels[0]['doc_id'][1:]) + 1) % DEPTH}"
    write(world["data"] / "qrels.parquet", pa.Table.from_pylist(qrels, schema=QRELS), QRELS)
    fitted(world, tmp_path / "after")
    before, after = (score_of(tmp_path / name, DEPTH) for name in ("before", "after"))
    changed = {query for query, doc in before if before[query, doc] != after[query, doc]}
    assert QUERIES[0] not in changed
    assert 10 < len(changed) < 30


def test_weights_are_not_fitted_where_nothing_relevant_was_read(world: dict[str, Any], tmp_path: Path) -> None:
    qrels = read(world["data"] / "qrels.parquet", QRELS)
    for relevance, doc_id in ((0, "d0"), (1, f"d{DEPTH}")):
        rows = [{**row, "relevance": relevance, "doc_id": doc_id} for row in qrels.to_pylist()]
        write(world["data"] / "qrels.parquet", pa.Table.from_pylist(rows, schema=QRELS), QRELS)
        if relevance:
            reranked = read(world["reranked"] / "ranking.parquet", RANKING)
            far = pc.or_(pc.not_equal(reranked["doc_id"], doc_id), pc.greater(reranked["rank"], DEPTH))
            write(world["reranked"] / "ranking.parquet", reranked.filter(far), RANKING)
        message = "no query of 'dev' has a relevant document among the first"
        with pytest.raises(UserError, match=message if relevance else "'dev' has no query with a relevant document"):
            fitted(world, tmp_path / f"out {relevance}")


def test_groups_are_taught_the_sums(world: dict[str, Any], tmp_path: Path) -> None:
    weights = fitted(world, tmp_path / "weights")
    scores = score_of(world["reranked"])
    rows = [
        {
            "query_id": q,
            "visit": v,
            "doc_ids": docs,
            "targets": [1.0] + [0.0] * (len(docs) - 1),
            "teacher": [scores[q, doc] for doc in docs],
        }
        for v, (q, docs) in enumerate([("q3", ["d1", "d2"]), ("q0", ["d0"]), ("q3", ["d3", "d1", "d0"])])
    ]
    groups = toy.write_groups(tmp_path / "groups", rows)
    (tmp_path / "out").mkdir()
    inputs = {"priors": world["priors"], "weights": tmp_path / "weights"}
    teach_with_prior(tmp_path / "out", toy.INLINE, groups=groups, **inputs)
    taught = read(tmp_path / "out" / "groups.parquet", GROUPS).to_pylist()
    for row, before in zip(taught, rows, strict=True):
        expected = [summed(world, weights, row["query_id"], doc) for doc in row["doc_ids"]]
        assert row["teacher"] == pytest.approx(expected, rel=1e-5)
        assert {k: row[k] for k in ("query_id", "visit", "doc_ids", "targets")} == {
            k: before[k] for k in ("query_id", "visit", "doc_ids", "targets")
        }


def test_no_groups_stay_none(world: dict[str, Any], tmp_path: Path) -> None:
    """As behind a closed gate."""
    fitted(world, tmp_path / "weights")
    (tmp_path / "groups").mkdir()
    write(tmp_path / "groups" / "groups.parquet", GROUPS.empty_table(), GROUPS)
    (tmp_path / "out").mkdir()
    inputs = {"priors": world["priors"], "weights": tmp_path / "weights"}
    teach_with_prior(tmp_path / "out", toy.INLINE, groups=tmp_path / "groups", **inputs)
    assert pq.read_metadata(tmp_path / "out" / "groups.parquet").num_rows == 0


def test_a_reader_is_told_that_a_rankers_rows_are_sums(world: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "told").mkdir()
    note = fit_prior(tmp_path / "told", toy.INLINE, **world, split="dev", depth=DEPTH)["note"]
    weights = json.loads((tmp_path / "told" / "weights.json").read_text())
    for name, whose in {"ranker": "its score", "retriever": "the retriever's", "bm25": "BM25's"}.items():
        assert f"{weights[name]:.3g} x {whose}" in note
