"""A retriever, BM25 and their fusion over several collections, in a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.evaluation.averages import averages_of
from sparring.components.evaluation.result_table import across, by_collection, table
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from tests.support import tiny, toy


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> dict[str, Any]:
    """Two collections: a toy one, and one of fewer documents whose queries are among its documents."""
    folder = tmp_path_factory.mktemp("collections")
    toy.write_data(folder / "one")
    itself = toy.write_data(folder / "two", documents=32, queries=12)
    texts = {row["doc_id"]: row["text"] for row in pq.read_table(itself / "documents.parquet").to_pylist()}
    for name in ("queries", "qrels"):  # query q3 is document d3 too, which is judged relevant to it
        path = itself / f"{name}.parquet"
        rows = [{**row, "query_id": row["query_id"].replace("q", "d")} for row in pq.read_table(path).to_pylist()]
        requests = [{**row, "text": texts[row["query_id"]]} if name == "queries" else row for row in rows]
        pq.write_table(pa.Table.from_pylist(requests, schema=pq.read_schema(path)), path)
    places = {name: tiny.write_beir(folder / f"beir {name}", folder / name) for name in ("one", "two")}
    small = tiny.dpr(places["one"], encoder)
    data = {name: {"format": "beir", "path": str(path)} for name, path in places.items()}
    data["two"]["own_document"] = "leave out"
    return {
        "recipe": "zeroshot",
        "k": 10,
        "encode": small["encode"],
        "retriever": small["retriever"],
        "collections": {"First": {"data": data["one"]}, "Second": {"data": data["two"]}},
        "analyse": {"map": 0},
    }


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> tiny.Place:
    place = tiny.place(tmp_path_factory.mktemp("zeroshot"), tree)
    assert place("run") == 0
    return place


def test_each_collection_and_the_average_have_every_system(played: tiny.Place) -> None:
    rows = [row for row in played.metrics()["rows"] if row["measure"] == "nDCG@10"]
    result = {(row["collection"], row["system"]): row["value"] for row in rows}
    systems = ("BM25", "retriever", "fusion")
    assert set(result) == {(name, system) for name in ("First", "Second", "average") for system in systems}
    for system in systems:
        assert result["average", system] == pytest.approx((result["First", system] + result["Second", system]) / 2)
    compared = {
        (metric["collection"], metric["system"], metric["baseline"]) for metric in played.metrics()["comparisons"]
    }
    assert ("Second", "fusion", "BM25") in compared
    assert {subject[1:] for subject in compared if subject[0] == "average"} == {
        subject[1:] for subject in compared if subject[0] == "Second"
    }


def test_steps_say_of_which_collection_they_are(played: tiny.Place) -> None:
    labels = [metric["label"] for metric in played.metrics()["steps"]]
    assert len(set(labels)) == len(labels)
    assert {"retriever", "First: bm25 ranking (test)", "Second: bm25 ranking (test)", "Second: fusion"} <= set(labels)


def test_contenders_are_measured_on_each_collection(tmp_path: Path, tree: dict[str, Any]) -> None:
    vendor = {"rerank_url": "http://localhost:9000/v1/rerank", "of": "retriever"}
    config = tiny.write(tmp_path / "a.yaml", {**tree, "contenders": {"ours": {"embedder": "a/b"}, "vendor": vendor}})
    outcome = loading.read(config, [], tmp_path).outcome
    rows = {(row.collection, row.name) for row in outcome.rows if row.contender}
    assert rows == {(name, system) for name in ("First", "Second") for system in ("ours", "vendor")}
    labels = [node.label for node in graph([outcome.results])]
    assert len(set(labels)) == len(labels)
    assert {"ours embedder", "First: ours vectors", "Second: vendor (test)"} <= set(labels)
    pairs = [(pair["system"], pair["baseline"]) for pair in outcome.results.inputs["comparisons"]]
    assert pairs[-2:] == [("retriever", "ours"), ("retriever", "vendor")]


def test_the_retrievers_space_is_looked_at_on_each_collection(played: tiny.Place) -> None:
    """Also where queries were left out of what it found: then nothing is its own nearest document."""
    labels = [metric["label"] for metric in played.metrics()["steps"] if metric["function"] == "analyse"]
    assert labels == ["First: retriever analysis", "Second: retriever analysis"]
    nearest = {label: json.loads((played.artifact(label) / "analysis.json").read_text())["nearest"] for label in labels}
    assert nearest[labels[0]] != nearest[labels[1]]
    assert (played.runs / "tiny/report.html").read_text().count('<h2 id="embedding-space') == 2


def test_the_queries_themselves_are_not_found_where_they_are_left_out(played: tiny.Place) -> None:
    """No query loses a place by it, and nobody counts its judgement of itself."""
    for label in ("bm25 ranking (test)", "retriever ranking (test)", "fusion"):
        rows = pq.read_table(played.artifact(f"Second: {label}") / "ranking.parquet").to_pylist()
        assert not [row for row in rows if row["query_id"] == row["doc_id"]]
        for query in {row["query_id"] for row in rows} if "retriever" in label else ():
            assert [row["rank"] for row in rows if row["query_id"] == query] == list(range(1, 11))
    qrels = pq.read_table(played.artifact("Second: data") / "qrels.parquet").to_pylist()
    assert qrels
    assert not [row for row in qrels if row["query_id"] == row["doc_id"]]


def test_sizes_are_measured_without_the_queries_too(tmp_path: Path, tree: dict[str, Any]) -> None:
    """The same vectors searched in the same way have the same measures."""
    place = tiny.place(tmp_path, {**tree, "sizes": {"same": {}}, "analyse": None})
    assert place("run") == 0
    values = {(row["collection"], row["measure"], row["system"]): row["value"] for row in place.metrics()["rows"]}
    assert values["First", "nDCG@10", "retriever"] > 0
    for (collection, measure, system), value in values.items():
        if system == "retriever":
            assert values[collection, measure, "retriever, same"] == value


def test_sets_are_of_an_experiment(tmp_path: Path, tree: dict[str, Any]) -> None:
    config = tiny.write(tmp_path / "sets.yaml", {**tree, "sets": ["k=5"]})
    with pytest.raises(UserError, match="sets: they are of an `experiment`, and there is none; accepted: left out"):
        loading.read(config, [], tmp_path)


def test_the_table_has_collections_for_rows(played: tiny.Place) -> None:
    text = table(played.metrics())
    lines = text.splitlines()
    assert lines[0] == "nDCG@10"
    assert lines[2].split() == ["collection", "BM25", "retriever", "fusion"]
    assert [line.split()[0] for line in lines[3:6]] == ["First", "Second", "average"]
    page = (played.runs / "tiny/report.html").read_text()
    assert "nDCG@10 over collections" in page
    assert page.index("First") < page.index("average")


def row(system: str, collection: str, value: float) -> dict[str, Any]:
    """A system's measure on a collection."""
    return {
        "system": system,
        "round": None,
        "collection": collection,
        "split": "test",
        "seed": 1,
        "measure": "RR",
        "value": value,
        "queries": 3,
    }


def metrics_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What tables are made of, of one seed."""
    means = [{**row, "seeds": [1], "low": row["value"] - 0.1, "high": row["value"] + 0.1} for row in rows]
    return {"rows": rows, "means": means, "comparisons": []}


def test_an_average_is_of_what_was_measured_everywhere() -> None:
    rows = [row("a", "x", 0.2), row("a", "y", 0.4), row("b", "x", 0.9)]
    output = averages_of(rows, {})
    assert [(item["system"], item["value"], item["queries"]) for item in output] == [("a", pytest.approx(0.3), 6)]
    assert across({"rows": rows, "means": rows}) == []


def test_a_system_without_an_average_is_in_the_tables_of_its_collections() -> None:
    rows = [row("a", "x", 0.2), row("a", "y", 0.4), row("b", "x", 0.9)]
    text = table(metrics_of(rows + averages_of(rows, {})))
    assert "0.900 ± 0.100*" in text.split("x, test split: 3 queries")[1]
    assert "y, test split" not in text


def test_the_parts_of_a_collection_count_once_in_the_average() -> None:
    """As CQADupStack's forums: (.2 + .4) / 2 = .3, and with .7 of another collection .5; all alike give .433."""
    rows = [row("a", "android", 0.2), row("a", "english", 0.4), row("a", "SciFact", 0.7), row("b", "android", 0.9)]
    output = averages_of(rows, {"android": "CQADupStack", "english": "CQADupStack"})
    result = [(item["system"], item["collection"], item["value"], item["queries"], item["over"]) for item in output]
    assert result == [
        ("a", "CQADupStack", pytest.approx(0.3), 6, ["android", "english"]),
        ("a", "average", pytest.approx(0.5), 9, ["SciFact", "CQADupStack"]),
    ]
    metrics = metrics_of(rows + output)
    assert [item["collection"] for item in by_collection(metrics)] == ["android", "english", "SciFact"]
    (shown,) = across(metrics)
    names = ["android", "english", "SciFact", "CQADupStack", "average"]
    assert [line["collection"] for line in shown["lines"]] == names


def test_two_retrievers_are_compared_on_the_average(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Each collection a part of one: the average is that whole's mean."""
    tree = {
        **tree,
        "fusion": None,
        "analyse": None,
        "collections": {name: {**requests, "part_of": "Both"} for name, requests in tree["collections"].items()},
    }
    files = {}
    for pooling in ("cls", "mean"):
        files[pooling] = str(tmp_path / f"{pooling}.yaml")
        tiny.write(Path(files[pooling]), {**tree, "retriever": {**tree["retriever"], "pooling": pooling}})
    report = {"recipe": "compare", "experiments": files, "baseline": "cls", "systems": ["retriever"]}
    place = tiny.place(tmp_path / "place", report)
    assert place("run") == 0
    result = {
        (metric["collection"], metric["system"]): metric["value"]
        for metric in place.metrics()["rows"]
        if metric["measure"] == "nDCG@10"
    }
    for system in ("cls: retriever", "mean: retriever"):
        mean = pytest.approx((result["First", system] + result["Second", system]) / 2)
        assert result["Both", system] == result["average", system] == mean
    compared = {
        metric["collection"]: metric["difference"]
        for metric in place.metrics()["comparisons"]
        if metric["measure"] == "nDCG@10"
    }
    gain = result["average", "mean: retriever"] - result["average", "cls: retriever"]
    assert compared["average"] == compared["Both"] == pytest.approx(gain)
    lines = table(place.metrics()).splitlines()
    assert [line.split()[0] for line in lines[3:7]] == ["First", "Second", "Both", "average"]
    position = lines.index("Averages over collections, compared")
    assert "  mean: retriever against cls: retriever" in lines[position:]
    assert "Differences of averages" in next(place.runs.glob("*/report.html")).read_text()


def test_experiments_that_take_a_collection_apart_differently_are_refused(tmp_path: Path, tree: dict[str, Any]) -> None:
    files = {}
    for whole in ("One", "Other"):
        itself = {"First": {**tree["collections"]["First"], "part_of": whole}, "Second": tree["collections"]["Second"]}
        files[whole] = str(tmp_path / f"{whole}.yaml")
        tiny.write(Path(files[whole]), {**tree, "collections": itself})
    report = {"recipe": "compare", "experiments": files, "baseline": "One", "systems": ["retriever"]}
    with pytest.raises(UserError, match=r"'Other' has 'First' as a part of 'Other', and another .* of 'One'"):
        loading.read(tiny.write(tmp_path / "compare.yaml", report), [], tmp_path)


@pytest.mark.parametrize(
    ("first", "part_of", "says"),
    [
        ("average", None, "'average' is the name of a mean"),
        ("First", "Second", "'Second' is the name of a mean"),
        ("First", "average", "'average' is the mean over all collections"),
    ],
)
def test_a_name_is_of_a_collection_or_of_a_mean(
    tmp_path: Path, tree: dict[str, Any], first: str, part_of: str | None, says: str
) -> None:
    itself = {first: {**tree["collections"]["First"], "part_of": part_of}, "Second": tree["collections"]["Second"]}
    with pytest.raises(UserError, match=says):
        loading.read(tiny.write(tmp_path / "zero.yaml", {**tree, "collections": itself}), [], tmp_path)


def test_the_retriever_of_an_experiment_is_taken(
    tmp_path: Path, tree: dict[str, Any], beir: Path, encoder: Path
) -> None:
    """Trained as its file says, here on candidates that were screened."""
    dpr = tiny.write(tmp_path / "dpr.yaml", {**tiny.dpr(beir, encoder), "screen": {"relative": 0.95}})
    report = {key: value for key, value in tree.items() if key != "retriever"} | {"experiment": str(dpr)}
    output = loading.read(tiny.write(tmp_path / "zero.yaml", report), [], tmp_path)
    assert output.outcome.retrieval.retriever.label == "retriever"
    assert output.outcome.retrieval.retriever.function.__name__ == "train"
    for mistake in ({**report, "retriever": tree["retriever"]}, {k: v for k, v in report.items() if k != "experiment"}):
        with pytest.raises(UserError, match="say either `retriever` or `experiment`"):
            loading.read(tiny.write(tmp_path / "bad.yaml", mistake), [], tmp_path)
    place = tiny.place(tmp_path / "place", {**report, "collections": {"Second": tree["collections"]["Second"]}})
    assert place("run") == 0
    assert {row["system"] for row in place.metrics()["rows"]} == {"BM25", "retriever", "fusion"}
    assert place("export", str(tmp_path / "out")) == 0
    card = (tmp_path / "out" / "retriever" / "README.md").read_text()
    assert f"The collection {beir.name}:" in card
    assert f"| {beir.name} | this model |" in card
    assert "On Second, " in card
    assert "| Second |" not in card
    assert f"Further training was on {beir.name}." in (tmp_path / "out" / "system" / "README.md").read_text()
    (screened,) = place.store.glob("screen-*")
    assert sum(json.loads((screened / "artifact.json").read_text())["summary"]["removed"].values())


def test_other_judgements_are_measured_and_do_not_count(tree: dict[str, Any], tmp_path: Path) -> None:
    """They are of the same queries, so nothing is encoded or searched again."""
    plain = loading.read(tiny.write(tmp_path / "plain.yaml", tree), [], tmp_path).outcome
    first = {**tree["collections"]["First"], "other_qrels": {"First, graded": tree["collections"]["Second"]["data"]}}
    report = {**tree, "collections": {**tree["collections"], "First": first}}
    outcome = loading.read(tiny.write(tmp_path / "told.yaml", report), [], tmp_path).outcome
    assert {row.collection for row in outcome.rows} == {"First", "First, graded", "Second"}
    rankings = [{row.ranking.fingerprint for row in subject.rows if row.ranking} for subject in (outcome, plain)]
    assert rankings[0] == rankings[1]
    assert outcome.parts == {"First, graded": None}
