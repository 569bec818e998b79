"""Measures against ir_measures and trec_eval, entropy by hand."""

import itertools
import math
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.components.config import UserError
from sparring.components.data.tables import RANKING
from sparring.components.evaluation.measures import (
    at_level,
    canonical,
    description,
    mean_entropy,
    means,
    per_query,
)
from sparring.components.sources.trec import write_ranking
from tests.support.errors import refused

MEASURES = ["RR@10", "nDCG@10", "R@5", "Success@1", "P@3", "AP@10", "RR", "AP"]
MEASURES += ["RR(rel=2)@10", "AP(rel=2)", "R(rel=2)@5"]


def ranking_of(scores: dict[str, dict[str, float]]) -> pa.Table:
    """A ranking as the project writes it: by score, ties in order of doc_id."""
    rows = []
    for query, documents in scores.items():
        ordered = sorted(documents.items(), key=lambda item: (-item[1], item[0]))
        rows += [(query, document, rank, score) for rank, (document, score) in enumerate(ordered, 1)]
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RANKING, strict=True)], schema=RANKING)


def qrels_of(judged: dict[str, dict[str, int]]) -> pa.Table:
    rows = [(query, document, level) for query, documents in judged.items() for document, level in documents.items()]
    query, document, level = (list(column) for column in zip(*rows, strict=True))
    return pa.table({"query_id": query, "doc_id": document, "relevance": pa.array(level, pa.int32())})


def values_of(table: pa.Table) -> dict[tuple[str, str], float]:
    return {(row["query_id"], row["measure"]): row["value"] for row in table.to_pylist()}


@st.composite
def collections(draw: st.DrawFn) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    """Small collections full of equal scores; some queries without results, some results without judgements."""
    documents = [f"d{n}" for n in range(12)]
    levels = st.dictionaries(st.sampled_from(documents), st.integers(0, 3), min_size=1, max_size=6)
    judged = draw(st.dictionaries(st.sampled_from(["q1", "q2", "q3", "q10"]), levels, min_size=1))
    scores = st.dictionaries(st.sampled_from(documents), st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1)
    return draw(st.dictionaries(st.sampled_from(["q1", "q2", "q3", "q4"]), scores)), judged


def apart(scores: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Scores without ties: equal ones fall by a little in order of doc_id, which is how a ranking orders them."""
    return {
        query: {document: score - 1e-3 * place for place, (document, score) in enumerate(sorted(documents.items()))}
        for query, documents in scores.items()
    }


@settings(max_examples=60, deadline=None)
@given(collections())
def test_values_are_those_of_ir_measures(
    collection: tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]],
) -> None:
    scores, judged = collection
    expected = {query for query, documents in judged.items() if max(documents.values()) > 0}
    result = values_of(per_query(ranking_of(scores), qrels_of(judged), MEASURES))
    assert set(result) == {(query, measure) for query in expected for measure in MEASURES}
    parsed = [ir_measures.parse_measure(measure) for measure in MEASURES]
    if not scores:
        assert not any(result.values())
        return
    for metric in ir_measures.iter_calc(parsed, judged, apart(scores)):
        if metric.query_id in expected:
            assert result[metric.query_id, str(metric.measure)] == pytest.approx(metric.value, abs=1e-12)


def test_values_are_those_of_the_written_run_file(tmp_path: Path) -> None:
    """What the command line of ir_measures says of the exported files is what we say, ties and all."""
    rng = np.random.default_rng(4)
    scores = {f"q{q}": {f"d{d}": float(np.float32(rng.integers(0, 6) / 3)) for d in range(30)} for q in range(20)}
    judged = {f"q{q}": {f"d{rng.integers(15)}": 1, f"d{rng.integers(15, 30)}": 2} for q in range(20)}
    table = ranking_of(scores)
    run, qrels = tmp_path / "run.trec", tmp_path / "qrels.trec"
    write_ranking(table, run, "s")
    qrels.write_text("".join(f"{q} 0 {d} {level}\n" for q, ds in judged.items() for d, level in ds.items()))
    files = list(ir_measures.read_trec_qrels(str(qrels))), list(ir_measures.read_trec_run(str(run)))
    aggregated = ir_measures.calc_aggregate([ir_measures.parse_measure(m) for m in MEASURES], *files)
    actual = means(per_query(table, qrels_of(judged), MEASURES))
    assert actual == pytest.approx({str(measure): value for measure, value in aggregated.items()})


def test_without_ties_all_tools_agree() -> None:
    rng = np.random.default_rng(5)
    scores = {f"q{q}": {f"d{d}": float(s) for d, s in enumerate(rng.permutation(40))} for q in range(15)}
    judged = {f"q{q}": {f"d{d}": 1 for d in rng.choice(40, 3, replace=False)} for q in range(15)}
    wanted = {"recip_rank", "ndcg_cut.10", "recall.5", "success.5", "map"}
    oracle = pytrec_eval.RelevanceEvaluator(judged, wanted).evaluate(scores)
    names = {"RR": "recip_rank", "nDCG@10": "ndcg_cut_10", "R@5": "recall_5", "Success@5": "success_5", "AP": "map"}
    result = values_of(per_query(ranking_of(scores), qrels_of(judged), [*names, "RR@10"]))
    for query, actual in itertools.product(scores, names):
        assert result[query, actual] == pytest.approx(oracle[query][names[actual]])
    for query in scores:
        full = result[query, "RR"]
        assert result[query, "RR@10"] == pytest.approx(full if full >= 0.1 else 0.0)


def test_the_order_of_rows_does_not_matter() -> None:
    scores = {"q": {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5}}
    table, judged = ranking_of(scores), qrels_of({"q": {"b": 1}})
    turned = table.take(list(reversed(range(len(table)))))
    assert per_query(table, judged, MEASURES).equals(per_query(turned, judged, MEASURES))
    result = values_of(per_query(table, judged, ["RR@10", "Success@1"]))
    assert result["q", "RR@10"] == 0.5  # a, b, c: in order of doc_id


def test_a_query_with_no_results_counts_zero_and_one_with_nothing_relevant_does_not_count() -> None:
    judged = qrels_of({"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}})
    table = per_query(ranking_of({"q1": {"a": 1.0}, "q3": {"a": 1.0}, "q4": {"a": 1.0}}), judged, ["RR@10", "nDCG@10"])
    assert values_of(table) == {
        ("q1", "RR@10"): 1.0,
        ("q2", "RR@10"): 0.0,
        ("q1", "nDCG@10"): 1.0,
        ("q2", "nDCG@10"): 0.0,
    }
    assert means(table) == {"RR@10": 0.5, "nDCG@10": 0.5}


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("MRR@10", "RR@10"),
        ("mrr@10", "RR@10"),
        ("RR@10", "RR@10"),
        ("ndcg@10", "nDCG@10"),
        ("recall@100", "R@100"),
        ("Recall@5", "R@5"),
        ("success@5", "Success@5"),
        ("map", "AP"),
        ("precision@1", "P@1"),
        (" nDCG @ 10 ", "nDCG@10"),
        ("mrr (rel=2)@10", "RR(rel=2)@10"),
        ("map(rel=2)", "AP(rel=2)"),
        ("recall(rel=1)@100", "R@100"),
    ],
)
def test_names_have_aliases(given_name: str, expected: str) -> None:
    assert canonical(given_name) == expected
    assert str(ir_measures.parse_measure(expected)) == expected


@pytest.mark.parametrize("name", ["bogus@10", "R", "RR@", "RR@0", "RR@x", "RR@-1", "Success", "", "@10", "RR@1.5"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with refused(name, "unknown-measure"):
        canonical(name)


def test_a_level_of_relevance_is_for_measures_that_ask_for_one() -> None:
    """TREC DL's reading: nDCG takes the grades, everything else calls 2 and more relevant."""
    judged, result = {"q": {"a": 1, "b": 2}}, {"q": {"a": 2.0, "b": 1.0}}
    table = per_query(ranking_of(result), qrels_of(judged), ["RR@10", "RR(rel=2)@10", "R(rel=2)@1"])
    assert values_of(table) == {("q", "RR@10"): 1.0, ("q", "RR(rel=2)@10"): 0.5, ("q", "R(rel=2)@1"): 0.0}
    assert "relevance 2 or more" in description("RR(rel=2)@10")
    with pytest.raises(UserError, match=r"nDCG takes no \(rel=2\); RR, R, Success, P, AP do"):
        canonical("nDCG(rel=2)@10")


def test_asked_twice_is_computed_once() -> None:
    table = per_query(ranking_of({"q": {"a": 1.0}}), qrels_of({"q": {"a": 1}}), ["RR@10", "MRR@10"])
    assert table["measure"].to_pylist() == ["RR@10"]
    assert "first relevant document (0 beyond rank 10)" in description("RR@10")


def test_seven_thousand_queries() -> None:
    queries, depth = 7000, 100
    rng = np.random.default_rng(0)
    documents = (np.arange(depth) + rng.integers(0, 50_000, (queries, 1))).ravel()
    columns = {
        "query_id": np.repeat([f"q{q}" for q in range(queries)], depth),
        "doc_id": [f"d{d}" for d in documents],
        "rank": np.tile(np.arange(1, depth + 1, dtype=np.int32), queries),
        "score": np.tile(np.linspace(1, 0, depth, dtype=np.float32), queries),
    }
    judged = qrels_of({f"q{q}": {f"d{documents[q * depth + q % depth]}": 1} for q in range(queries)})
    table = pa.table(columns, schema=RANKING)
    result = means(per_query(table, judged, ["RR@10", "nDCG@10", "R@100"]))
    assert result["R@100"] == 1.0
    assert result["RR@10"] == pytest.approx(sum(1 / (r + 1) for r in range(10)) / 100)


def test_entropy_is_that_of_the_softmax_over_the_first_documents() -> None:
    scores = {"q1": {f"d{n:02}": 3.0 - 0.3 * n for n in range(20)}, "q2": {f"d{n:02}": 1.0 for n in range(20)}}

    def by_hand(values: list[float]) -> float:
        weights = np.exp(values) / np.exp(values).sum()
        return float(-(weights * np.log(weights)).sum())

    expected = (by_hand([3.0 - 0.3 * n for n in range(15)]) + math.log(15)) / 2
    assert mean_entropy(ranking_of(scores)) == pytest.approx(expected, abs=1e-6)
    sharper = (by_hand([(3.0 - 0.3 * n) / 0.1 for n in range(15)]) + math.log(15)) / 2
    assert mean_entropy(ranking_of(scores), temperature=0.1) == pytest.approx(sharper, abs=1e-5)


def test_entropy_bears_large_scores_and_short_lists() -> None:
    assert mean_entropy(ranking_of({"q": {"a": 1e5, "b": -1e5}})) == 0.0
    assert mean_entropy(ranking_of({"q": {"a": 2.0, "b": 2.0}})) == pytest.approx(math.log(2))
    assert mean_entropy(ranking_of({})) == 0.0
    with pytest.raises(ValueError, match="above 0"):
        mean_entropy(ranking_of({}), temperature=0)


def test_trec_dls_strict_and_lenient_readings() -> None:
    """Strictly relevance 1 is not right; nDCG's gains stay graded in both (TREC DL's overview, Zerveas et al., 2023,
    A.2.1)."""
    names = ["RR@10", "R@1000", "nDCG@10", "AP", "RR(rel=3)@10", "P@5"]
    strict = ["RR(rel=2)@10", "R(rel=2)@1000", "nDCG@10", "AP(rel=2)", "RR(rel=3)@10", "P(rel=2)@5"]
    assert [at_level(name, 2) for name in names] == strict
    assert [at_level(name, 1) for name in names] == names
    qrels = qrels_of({"q": {"a": 1, "b": 2, "c": 0}, "related alone": {"a": 1}})
    table = ranking_of({"q": {"a": 3.0, "c": 2.0, "b": 1.0}, "related alone": {"a": 1.0}})
    result = values_of(per_query(table, qrels, ["RR@10", "RR(rel=2)@10", "nDCG@10"]))
    assert (result["q", "RR@10"], result["q", "RR(rel=2)@10"]) == (1.0, pytest.approx(1 / 3))
    assert (result["related alone", "RR@10"], result["related alone", "RR(rel=2)@10"]) == (1.0, 0.0)
    gained = 1 + 2 / math.log2(4)
    assert result["q", "nDCG@10"] == pytest.approx(gained / (2 + 1 / math.log2(3)))
