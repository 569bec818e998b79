"""The steps that measure a ranking and gather a run's measures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import ANSWERED, DOCUMENTS, QRELS, QUERIES, RANKING
from sparring.components.evaluation.measures import answer_hits_per_query, mean_entropy, per_query
from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING, compare
from sparring.workflows.steps.evaluate import EntropyConfig, evaluate, results


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    judged = {
        "query_id": ["q1", "q2", "q3", "q4", "q9"],
        "doc_id": ["a", "b", "c", "a", "a"],
        "relevance": [1, 2, 1, 0, 1],
        "split": ["test", "test", "test", "test", "dev"],
    }
    pq.write_table(pa.table(judged, schema=QRELS), folder / "qrels.parquet")
    pq.write_table(documents("ab"), folder / "documents.parquet")
    return folder


def documents(names: Sequence[str]) -> pa.Table:
    """Documents of a collection."""
    return pa.Table.from_pylist([{"doc_id": name, "title": "", "text": name} for name in names], schema=DOCUMENTS)


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    folder = tmp_path / "ranking"
    folder.mkdir()
    columns = {
        "query_id": ["q1", "q1", "q2", "q2", "q9"],
        "doc_id": ["a", "b", "a", "b", "b"],
        "rank": [1, 2, 1, 2, 1],
        "score": [2.0, 1.0, 2.0, 1.0, 1.0],
    }
    pq.write_table(pa.table(columns, schema=RANKING), folder / "ranking.parquet")
    return folder


def test_a_ranking_is_measured_on_the_queries_of_its_split(tmp_path: Path, data: Path, ranking: Path) -> None:
    options = {"data": data, "ranking": ranking, "split": "test", "measures": ["MRR@10", "R@1"]}
    summary = evaluate(tmp_path, None, **options)
    assert summary == {
        "measures": {"RR@10": pytest.approx((1 + 0.5 + 0) / 3), "R@1": pytest.approx(1 / 3)},
        "queries": 3,
        "without_results": 1,
    }
    table = pq.read_table(tmp_path / "per_query.parquet")
    assert table.schema.names == ["query_id", "measure", "value"]
    assert table["query_id"].to_pylist() == ["q1", "q2", "q3"] * 2
    assert evaluate(tmp_path, None, **options) == summary  # called again on the same place


@pytest.mark.parametrize("rows", [1, 7, 1_000])
def test_a_ranking_in_pieces_is_measured_as_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Queries in no order, some without results, some without a relevant document."""
    monkeypatch.setattr("sparring.workflows.steps.evaluate.ROWS", rows)
    draw, queries = np.random.default_rng(0), [f"q{number}" for number in range(30)]
    judged = [
        {"query_id": query, "doc_id": f"d{document}", "relevance": int(draw.integers(0, 3)), "split": "test"}
        for query in queries
        for document in draw.permutation(8)[:3]
    ]
    hits = [
        {"query_id": query, "doc_id": f"d{document}", "rank": rank, "score": 9.0 - rank, "hit": draw.random() < 0.3}
        for query in draw.permutation(queries)[:26].tolist()
        for rank, document in enumerate(draw.permutation(8)[:5], 1)
    ]
    questions = [
        {"query_id": q, "text": q, "answers": [["a"], []][number % 2], "split": "test"}
        for number, q in enumerate(queries)
    ]
    qrels, ranking = pa.Table.from_pylist(judged, schema=QRELS), pa.Table.from_pylist(hits, schema=ANSWERED)
    for name, table in {
        "qrels": qrels,
        "queries": pa.Table.from_pylist(questions, schema=QUERIES),
        "ranking": ranking,
        "documents": documents("abcde"),
    }.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    measures = ["RR@10", "nDCG@5", "Answer@2"]
    summary = evaluate(
        tmp_path,
        None,
        data=tmp_path,
        ranking=tmp_path,
        split="test",
        measures=measures,
        entropy=EntropyConfig(documents=3),
    )
    whole = [
        per_query(ranking, qrels, measures[:2]),
        answer_hits_per_query(ranking, queries[::2], measures[2:]),
    ]
    assert pq.read_table(tmp_path / "per_query.parquet") == pa.concat_tables(whole)
    measured = {row["query_id"] for table in whole for row in table.to_pylist()}
    ranked = {row["query_id"] for row in hits}
    assert summary["queries"] == len(measured) > len(measured & ranked)
    assert summary["without_results"] == len(measured - ranked)
    of_measured = ranking.filter(pc.is_in(ranking["query_id"], value_set=pa.array(sorted(measured), pa.large_string())))
    assert summary["entropy"] == mean_entropy(of_measured, documents=3)


def test_ties_that_decide_a_measure_for_many_queries_are_named(tmp_path: Path, data: Path, ranking: Path) -> None:
    """Of three queries q2 has its relevant document second of two with equal scores."""
    table = pq.read_table(ranking / "ranking.parquet")
    tied = table.set_column(3, "score", pa.array([2.0, 1.0, 2.0, 2.0, 1.0], pa.float32()))
    pq.write_table(tied, ranking / "ranking.parquet")
    summary = evaluate(tmp_path, None, data=data, ranking=ranking, split="test", measures=["RR@10", "R@2"])
    assert summary["measures"] == {"RR@10": 0.5, "R@2": pytest.approx(2 / 3)}
    assert summary["note"] == (
        "For 1 of 3 queries RR@10 depends on the order of documents with equal scores: its mean is 0.500 with the "
        "worst order, 0.667 with the best."
    )


def test_a_measure_that_looks_further_than_the_ranking_is_named(tmp_path: Path, data: Path, ranking: Path) -> None:
    """Where the collection has more documents."""
    options = {"data": data, "ranking": ranking, "split": "test", "measures": ["RR@10", "R@2", "R@100", "AP"]}
    assert "note" not in evaluate(tmp_path, None, **options)
    pq.write_table(documents("abc"), data / "documents.parquet")
    says = "The ranking ends at rank 2, so RR@10, R@100 may be too low."
    assert evaluate(tmp_path, None, **options)["note"] == says


def test_entropy_is_measured_where_asked(tmp_path: Path, data: Path, ranking: Path) -> None:
    summary = evaluate(
        tmp_path, None, data=data, ranking=ranking, split="test", measures=["RR@10"], entropy=EntropyConfig(documents=2)
    )
    assert summary["entropy"] == pytest.approx(0.582203, abs=1e-5)  # both have scores 2 and 1
    assert summary["entropy_documents"] == 2


def test_a_split_without_judgements_names_those_that_have_some(tmp_path: Path, data: Path, ranking: Path) -> None:
    with pytest.raises(UserError, match=r"split 'train' has no query with a relevant document.*: dev, test"):
        evaluate(tmp_path, None, data=data, ranking=ranking, split="train", measures=["RR@10"])


def measured(folder: Path, values: list[float], measure: str = "RR@10") -> Path:
    """What an evaluate step leaves."""
    folder.mkdir(parents=True)
    queries = [f"q{n:03}" for n in range(len(values))]
    columns = {"query_id": queries, "measure": [measure] * len(values), "value": values}
    pq.write_table(pa.table(columns), folder / "per_query.parquet")
    return folder


def system(name: str, seed: int, metrics: Path, **fields: Any) -> dict[str, Any]:
    return {
        "system": name,
        "round": None,
        "collection": "c",
        "split": "test",
        "seed": seed,
        "metrics": metrics,
        **fields,
    }


def gathered(out: Path, systems: list[dict[str, Any]], comparisons: list[dict[str, str]]) -> dict[str, Any]:
    results(out, None, systems=systems, comparisons=comparisons, rounds=1000)
    return json.loads((out / "metrics.json").read_text())


def test_results_are_as_the_contract_has_them(tmp_path: Path) -> None:
    low, high = [0.0, 0.5] * 20, [0.5, 1.0] * 20
    systems = [
        system("BM25", 1, measured(tmp_path / "a", low)),
        system("retriever 1", 1, measured(tmp_path / "b", high), round=1),
        system("retriever 1", 2, measured(tmp_path / "c", low), round=1),
    ]
    metrics = gathered(tmp_path, systems, [{"system": "retriever 1", "baseline": "BM25"}])
    assert metrics["rows"][1] == {
        "system": "retriever 1",
        "round": 1,
        "collection": "c",
        "split": "test",
        "seed": 1,
        "measure": "RR@10",
        "value": 0.75,
        "queries": 40,
    }
    assert [row["system"] for row in metrics["rows"]] == ["BM25", "retriever 1", "retriever 1"]
    assert metrics["comparisons"] == [
        {
            "system": "retriever 1",
            "baseline": "BM25",
            "collection": "c",
            "split": "test",
            "seeds": [1],
            "measure": "RR@10",
            "difference": 0.5,
            "low": 0.5,
            "high": 0.5,
            "p": pytest.approx(1 / 1001),
            "test": "paired randomization over queries (this training)",
            "queries": 40,
            "p_holm": pytest.approx(1 / 1001),
        }
    ]
    half = 1.96 * 0.25 / 40**0.5
    assert metrics["means"][0] == {
        "system": "BM25",
        "collection": "c",
        "split": "test",
        "seeds": [1],
        "measure": "RR@10",
        "value": 0.25,
        "low": pytest.approx(0.25 - half, abs=0.005),
        "high": pytest.approx(0.25 + half, abs=0.005),
        "queries": 40,
    }
    assert [(mean["system"], mean["seeds"]) for mean in metrics["means"]] == [("BM25", [1]), ("retriever 1", [1, 2])]


def test_a_comparison_goes_over_all_seeds_that_both_have(tmp_path: Path) -> None:
    systems = [
        system(name, seed, measured(tmp_path / f"{name}{seed}", [value + seed / 10, value]))
        for name, value, seeds in (("old", 0.1, (1, 2, 3)), ("new", 0.3, (3, 1, 5)))
        for seed in seeds
    ]
    queries, crossed = gathered(tmp_path, systems, [{"system": "new", "baseline": "old"}])["comparisons"]
    assert (queries["test"], crossed["test"]) == (THIS_TRAINING, THE_METHOD)
    for comparison in (queries, crossed):
        assert comparison["seeds"] == [1, 3]
        assert comparison["difference"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, [("new", "old"), ("new", "theirs")]),
        (
            {"system": "new", "baseline": "BM25", "measure": "RR@10"},
            [("new", "BM25"), ("new", "old"), ("new", "theirs")],
        ),
        (
            {"system": "new", "baseline": "BM25", "measure": "RR@10", "deploy": "BM25"},
            [("new", "BM25"), ("new", "old"), ("BM25", "theirs"), ("new", "theirs")],
        ),
        ({"system": None, "deploy": "old", "why": "x"}, [("new", "old"), ("old", "theirs"), ("new", "theirs")]),
    ],
)
def test_others_rankings_are_compared_with_what_a_run_is_for(
    tmp_path: Path, selection: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """The leading system, which a selection may name, and what is to be deployed."""
    values = {"BM25": 0.2, "old": 0.1, "new": 0.3, "theirs": 0.4}
    systems = [system(name, 1, measured(tmp_path / name, [value, 0.5])) for name, value in values.items()]
    (tmp_path / "selection.json").write_text(json.dumps({"split": "dev", **selection}))
    pairs = [{"system": "new", "baseline": "old"}, {"system": None, "baseline": "theirs"}]
    results(tmp_path, None, systems=systems, comparisons=pairs, selection=tmp_path if selection else None, rounds=100)
    comparisons = json.loads((tmp_path / "metrics.json").read_text())["comparisons"]
    assert [(comparison["system"], comparison["baseline"]) for comparison in comparisons] == expected


def test_p_is_corrected_within_a_table(tmp_path: Path) -> None:
    """Two comparisons on one collection are a family; the one on another is alone."""
    values = {"old": [0.1, 0.5, 0.3, 0.2, 0.4], "new": [0.3, 0.6, 0.4, 0.5, 0.4], "last": [0.2, 0.4, 0.6, 0.2, 0.4]}
    systems = [
        system(name, 1, measured(tmp_path / place / name, scores), collection=place)
        for place, names in (("c1", ("old", "new", "last")), ("c2", ("old", "new")))
        for name, scores in ((name, values[name]) for name in names)
    ]
    pairs = [{"system": name, "baseline": "old"} for name in ("new", "last")]
    first, alone, second = gathered(tmp_path, systems, pairs)["comparisons"]
    assert (first["collection"], alone["collection"], second["collection"]) == ("c1", "c2", "c1")
    assert first["p_holm"] == pytest.approx(2 * first["p"])
    assert second["p_holm"] == second["p"] > first["p_holm"]
    assert alone["p_holm"] == alone["p"] == first["p"]


def test_collections_and_measures_are_compared_each_with_its_own(tmp_path: Path) -> None:
    systems = [
        system(name, 1, measured(tmp_path / name / place, [value, value]), collection=place)
        for name, value in (("old", 0.1), ("new", 0.3))
        for place in ("c1", "c2")
    ]
    systems.append(system("new", 1, measured(tmp_path / "only new", [0.5]), collection="c3"))
    comparisons = gathered(tmp_path, systems, [{"system": "new", "baseline": "old"}])["comparisons"]
    assert [comparison["collection"] for comparison in comparisons] == ["c1", "c2"]


def test_the_same_results_are_the_same_bytes(tmp_path: Path) -> None:
    systems = [system(n, 1, measured(tmp_path / n, [0.1 * k, 0.2, 0.3, 0.9])) for k, n in enumerate(("old", "new"))]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        gathered(tmp_path / name, systems, [{"system": "new", "baseline": "old"}])
    assert (tmp_path / "first/metrics.json").read_bytes() == (tmp_path / "second/metrics.json").read_bytes()


def test_mistakes_in_what_to_compare_are_named(tmp_path: Path) -> None:
    systems = [system("old", 1, measured(tmp_path / "a", [0.1]))]
    with pytest.raises(ValueError, match="'nobody', which was not measured"):
        gathered(tmp_path, systems, [{"system": "old", "baseline": "nobody"}])
    with pytest.raises(ValueError, match="'old' is given twice for seed 1"):
        gathered(tmp_path, systems * 2, [])


# Answers, and samples


@pytest.fixture
def answered(tmp_path: Path, data: Path) -> Path:
    """q1's second document and q5's third bear answers; q5 has no judgement, q2 no answer, q3 no results."""
    questions = [
        ("q1", ["x"], "test"),
        ("q2", [], "test"),
        ("q3", ["y"], "test"),
        ("q5", ["z"], "test"),
        ("q9", ["z"], "dev"),
    ]
    queries = [{"query_id": name, "text": name, "answers": a, "split": split} for name, a, split in questions]
    pq.write_table(pa.Table.from_pylist(queries, schema=QUERIES), data / "queries.parquet")
    folder = tmp_path / "answered"
    folder.mkdir()
    hits = {("q1", 2), ("q5", 3)}
    rows = [
        {"query_id": name, "doc_id": doc, "rank": rank, "score": 9.0 - rank, "hit": (name, rank) in hits}
        for name in ("q1", "q2", "q5", "q9")
        for rank, doc in enumerate("abcd", 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=ANSWERED), folder / "ranking.parquet")
    return folder


def test_answers_are_measured_on_the_queries_that_have_some(tmp_path: Path, data: Path, answered: Path) -> None:
    summary = evaluate(
        tmp_path,
        None,
        data=data,
        ranking=answered,
        split="test",
        measures=["Answer@1", "answer@2", "Answer@100", "R@1"],
    )
    assert summary["measures"] == {
        "R@1": pytest.approx(1 / 3),
        "Answer@1": 0,
        "Answer@2": pytest.approx(1 / 3),
        "Answer@100": pytest.approx(2 / 3),
    }


def test_a_split_without_answers(tmp_path: Path, data: Path, answered: Path) -> None:
    queries = pq.read_table(data / "queries.parquet")
    pq.write_table(queries.filter(pc.equal(queries["query_id"], "q2")), data / "queries.parquet")
    with pytest.raises(
        UserError, match=r"Answer@k needs queries with answers, and no query of the split 'test' has one"
    ):
        evaluate(tmp_path, None, data=data, ranking=answered, split="test", measures=["Answer@1"])


def test_a_sample_is_the_same_for_every_system(tmp_path: Path, data: Path, ranking: Path) -> None:
    """And it is compared with a system that was measured on all queries on the sample alone."""
    places = {}
    for name, queries in (("all", None), ("two", 2), ("again", 2)):
        places[name] = tmp_path / name
        places[name].mkdir()
        summary = evaluate(
            places[name], None, data=data, ranking=ranking, split="test", measures=["RR@10"], queries=queries
        )
        assert summary["queries"] == (queries or 3)
    tables = {name: pq.read_table(place / "per_query.parquet") for name, place in places.items()}
    assert tables["two"].equals(tables["again"])
    assert tables["two"].equals(of_queries(tables["all"], tables["two"]))
    [comparison] = compare([tables["two"]], [tables["all"]], seed=0)
    assert (comparison["difference"], comparison["queries"], comparison["p"]) == (0, 2, 1)
    rest = tables["all"].filter(pc.not_equal(tables["all"]["query_id"], tables["two"]["query_id"][0]))
    with pytest.raises(ValueError, match="measured on different queries"):
        compare([tables["two"]], [rest], seed=0)


def test_judgements_and_answers_are_looked_at_in_one_sample(tmp_path: Path, data: Path, answered: Path) -> None:
    options = {"data": data, "ranking": answered, "split": "test", "measures": ["RR@10", "Answer@2"]}
    everything, sample = [
        (evaluate(tmp_path, None, **options, queries=queries), pq.read_table(tmp_path / "per_query.parquet"))
        for queries in (None, 2)
    ]
    assert (everything[0]["queries"], sample[0]["queries"]) == (4, 2)
    assert set(sample[1]["measure"].to_pylist()) == {"RR@10", "Answer@2"}
    assert sample[1].equals(of_queries(everything[1], sample[1]))


def of_queries(values: pa.Table, reference: pa.Table) -> pa.Table:
    """The values of those queries that another table has values of."""
    return values.filter(pc.is_in(values["query_id"], value_set=reference["query_id"].combine_chunks()))
