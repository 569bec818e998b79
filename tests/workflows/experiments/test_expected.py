"""What a paper has beside a run's results: the key `expected`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.files import read_json
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.expected import Expected
from tests.support import tiny
from tests.support.tiny import Said

PAPER: dict[str, Any] = {
    "source": "Karpukhin et al. (2020), Table 2",
    "of": [{"measure": "RR@10", "values": {"BM25": -200, "start model": 200, "their own": 40}}],
}


def mean(system: str, value: float, half: float | None = None, **more: Any) -> dict[str, Any]:
    low, high = (None, None) if half is None else (value - half, value + half)
    return {"system": system, "collection": "c", "measure": "RR@10", "value": value, "low": low, "high": high, **more}


@pytest.mark.parametrize(
    ("value", "half", "lies"),
    [
        (0.40, 0.01, "within"),
        (0.385, 0.01, "above"),
        (0.42, 0.01, "below"),
        (0.40, None, "within"),
        (0.41, None, "below"),
    ],
)
def test_a_value_lies_within_the_interval_or_not(value: float, half: float | None, lies: str) -> None:
    expected = Expected(source="s", of=[{"measure": "RR@10", "values": {"a": 40.0}}])
    (row,) = expected.beside([mean("a", value, half), mean("a", 0.1, measure="R@100"), mean("b", 0.2)])["rows"]
    assert (row["expected"], row["value"], row["lies"]) == (0.4, value, lies)
    assert row["difference"] == pytest.approx(value - 0.4)
    assert row["sentence"].startswith(f"The paper's 0.400 lies {lies} ")
    assert ("no interval" in row["sentence"]) is (half is None)


def test_what_cannot_be_told_says_why() -> None:
    column = {"measure": "RR@10", "values": {"a": 40.0}}
    expected = Expected(source="s", of=[{**column, "not_comparable": "other queries"}, {**column, "measure": "R@100"}])
    first, second = expected.beside([mean("a", 0.5, 0.1), mean("a", 0.5, 0.1, measure="R@100")])["rows"]
    assert (first["lies"], first["sentence"]) == ("not comparable", "Not comparable: other queries.")
    assert (first["difference"], second["lies"]) == (pytest.approx(0.1), "within")


def test_some_rows_of_a_column_may_not_be_comparable() -> None:
    column = {"measure": "RR@10", "values": {"a": 40.0, "b": 40.0}, "rows_not_comparable": {"a": "it learns nothing"}}
    first, second = Expected(source="s", of=[column]).beside([mean("a", 0.5, 0.1), mean("b", 0.5, 0.2)])["rows"]
    assert (first["lies"], first["sentence"]) == ("not comparable", "Not comparable: it learns nothing.")
    assert second["lies"] == "within"


def test_other_numbers_are_not_the_papers() -> None:
    expected = Expected(source="s", of=[{"measure": "RR@10", "values": {"a": 40.0}}])
    assert expected.after(["seeds=[1, 2]"]).beside([mean("a", 0.4, 0.1)])["rows"][0]["lies"] == "within"
    (row,) = expected.after(["seeds=[1]", "train.updates=3"]).beside([mean("a", 0.4, 0.1)])["rows"]
    assert row["sentence"] == "Not comparable: this run has --set train.updates=3."


def test_a_figure_has_no_values_and_says_so() -> None:
    assert Expected(source="s", unsaid="points in no table").beside([]) == {
        "source": "s",
        "unsaid": "points in no table",
        "rows": [],
    }


def test_shares_and_collections_are_told_apart() -> None:
    expected = Expected(
        source="s",
        unit="share",
        of=[
            {"measure": "RR@10", "collection": "c", "values": {"a": 0.4}},
            {"measure": "RR@10", "collection": "d", "values": {"a": 0.5}},
        ],
    )
    c, d = expected.beside([mean("a", 0.3, 0.2)])["rows"]
    assert (c["expected"], c["lies"]) == (0.4, "within")
    assert (d["expected"], d["value"], d["lies"]) == (0.5, None, "not measured")


def test_a_number_is_taken_as_it_is_and_one_query_is_not_the_mean() -> None:
    expected = Expected(
        source="s",
        of=[
            {"measure": "GB of index", "unit": "number", "values": {"a": 27}},
            {"measure": "RR@10", "query": "why?", "values": {"a": 50}},
        ],
    )
    size, query = expected.beside(
        [
            mean("a", 27.2, measure="GB of index"),
            mean("a", 0.3),
            {**mean("a", 0.5), "query": "why?"},
            {**mean("a", 1.0), "query": "how?"},
        ]
    )["rows"]
    assert (size["expected"], size["value"], size["lies"]) == (27, 27.2, "below")
    assert (query["measure"], query["expected"], query["value"]) == ("RR@10 of 'why?'", 0.5, 0.5)


def test_an_index_and_single_queries_are_measured(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    """The vectors' files are searched, and BM25's index; the value of a query is the mean over the seeds."""
    place = tiny.place(tmp_path / "plain", {**tiny.dpr(beir, encoder), "seeds": [1, 2]})
    assert place("run") == 0
    split = place.metrics()["means"][0]["split"]
    queries = pq.read_table(place.artifact("data") / "queries.parquet", filters=[("split", "=", split)]).to_pylist()
    query = queries[0]
    tables = [
        pq.read_table(
            place.artifact(f"retriever (seed {seed}) measures") / "per_query.parquet",
            filters=[("query_id", "=", query["query_id"]), ("measure", "=", "RR@10")],
        )
        for seed in (1, 2)
    ]
    values = [table["value"][0].as_py() for table in tables]
    size = sum(path.stat().st_size for path in place.artifact("retriever (seed 1) vectors").glob("documents-*.npy"))
    columns = [
        {"measure": "GB of index", "unit": "number", "values": {"retriever": 1.0, "BM25": 1.0}},
        {"measure": "RR@10", "query": query["text"], "values": {"retriever": 50.0}},
        {"measure": "RR@10", "query": "nobody asks this", "values": {"retriever": 50.0}},
    ]
    tiny.write(place.config, {**tiny.dpr(beir, encoder), "seeds": [1, 2], "expected": {**PAPER, "of": columns}})
    said()
    assert place("run") == 0
    vectors, lexical, average, none = place.metrics()["expected"]["rows"]
    assert vectors["value"] == size / 1e9 > 0
    assert lexical["value"] > 0
    assert average["value"] == pytest.approx(sum(values) / 2)
    assert none["lies"] == "not measured"


def test_it_changes_no_step_and_stands_in_the_table_and_the_report(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    tree = {**tiny.dpr(beir, encoder), "train": None}
    plain, variant = (
        loading.read(tiny.write(tmp_path / f"{name}.yaml", content), [], tmp_path)
        for name, content in {"plain": tree, "told": {**tree, "expected": PAPER}}.items()
    )
    assert [node.fingerprint for node in variant.wanted] == [node.fingerprint for node in plain.wanted]
    entropy = {"measure": "entropy", "unit": "number", "values": {"start model": 0.01, "BM25": 1.5}}
    place = tiny.place(tmp_path / "place", {**tree, "expected": {**PAPER, "of": [*PAPER["of"], entropy]}})
    assert place("run") == 0
    said()
    assert place("show") == 0
    table = said()[0]
    assert "Karpukhin et al. (2020), Table 2: the paper's numbers and this run's" in table
    lines = [line.split() for line in table.partition("paper lies")[2].splitlines()]
    assert ["their", "own", "RR@10", "0.400", "-", "-", "not", "measured"] in lines
    rows = place.metrics()["expected"]["rows"]
    assert [(row["system"], row["lies"]) for row in rows] == [
        ("BM25", "below"),
        ("start model", "above"),
        ("their own", "not measured"),
        ("start model", "below"),
        ("BM25", "not measured"),  # whose entropy is not measured
    ]
    measured = place.artifact("start model measures")
    assert rows[3]["value"] == pytest.approx(read_json(measured / "artifact.json")["summary"]["entropy"])
    assert rows[3]["expected"] == 0.01
    page = (place.runs / "tiny" / "report.html").read_text()
    assert "Karpukhin et al. (2020), Table 2" in page
    assert "Not comparable: this run has no such row." in page
    assert place("run", "--set", "k=9") == 0
    said()
    assert place("show", "--set", "k=9") == 0
    assert "Not comparable: this run has --set k=9." in said()[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"of": []}, "of: columns with the paper.s values, or none and `unsaid`"),
        (
            {"of": [{**PAPER["of"][0], "rows_not_comparable": {"BM26": "why"}}]},
            "rows_not_comparable: 'BM26' has no value; accepted: BM25, start model, their own",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told(beir: Path, encoder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", {**tiny.dpr(beir, encoder), "expected": {**PAPER, **change}})
    with pytest.raises(UserError, match=message):
        loading.read(path, [], tmp_path)
