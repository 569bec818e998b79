"""Whole runs of EAR on a toy collection: with and without language models, in one process and through Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import tiny
from tests.tiny import Place
from tests.writers import write_generator
from workflows import recipes
from workflows.dag import graph


def systems(place: Place) -> list[str]:
    """Those that a run measured, in order."""
    return list(dict.fromkeys(row["system"] for row in place.metrics()["rows"]))


def values(place: Place) -> dict[tuple[str, str], float]:
    """Every measure of every system."""
    return {(row["system"], row["measure"]): row["value"] for row in place.metrics()["rows"]}


@pytest.fixture(scope="module")
def eared(tmp_path_factory: pytest.TempPathFactory, played: Place, beir: Path, encoder: Path) -> Place:
    """A finished run; its index is that of another run of the same collection."""
    place = tiny.place(tmp_path_factory.mktemp("ear") / "place", tiny.ear(beir, encoder))
    for label in ("data", "bm25 index", "start retriever", "tokens"):
        shutil.copytree(played.artifact(label), place.store / played.artifact(label).name)
    assert place("run") == 0
    return place


def test_every_artifact_of_the_plan_is_there(eared: Place) -> None:
    wanted = recipes.read(eared.config, [], eared.runs).wanted
    assert {path.name for path in eared.store.iterdir()} == {node.name for node in graph(wanted)}
    for folder in [path for node in ("expand", "choose", "fuse", "predict") for path in eared.store.glob(f"{node}*")]:
        assert not [path for path in folder.iterdir() if path.name.startswith((".", "part-", "feedback", "freq"))]


def test_what_the_paper_compares_is_measured(eared: Place) -> None:
    assert systems(eared) == [
        "BM25", "first expansion", "concat", "best query", "start model", "BM25 + dense", "EAR-RI", "EAR-RI + dense",
        "EAR-RI N=2", "EAR-RD", "EAR-RD + dense", "EAR-RD N=2", "first expansion + passages",
        "first expansion + passages k=4", "EAR-RI + passages", "EAR-RI + passages k=4", "EAR-RD + passages",
        "EAR-RD + passages k=4",
    ]  # fmt: skip
    compared = [(one["system"], one["baseline"]) for one in eared.metrics()["comparisons"]]
    assert compared[0] == ("EAR-RD", "first expansion")
    assert {
        ("EAR-RD", "EAR-RI"),
        ("best query", "EAR-RD"),
        ("EAR-RD + dense", "BM25 + dense"),
        ("EAR-RD + passages", "EAR-RD"),
        ("EAR-RD", "first expansion + passages k=4"),
    } <= set(compared)


def test_the_oracle_of_each_generator_is_as_good_as_any_choice(eared: Place) -> None:
    """By the rank of the first relevant document, query by query."""
    relevant: dict[str, set[str]] = {}
    for row in pq.read_table(eared.artifact("data") / "qrels.parquet", filters=[("relevance", ">", 0)]).to_pylist():
        relevant.setdefault(row["query_id"], set()).add(row["doc_id"])

    def first(label: str) -> dict[str, int]:
        found = dict.fromkeys(relevant, 10_000)
        for row in pq.read_table(eared.artifact(label) / "ranking.parquet").to_pylist():
            if row["doc_id"] in relevant[row["query_id"]]:
                found[row["query_id"]] = min(found[row["query_id"]], row["rank"])
        return found

    for name in ("sentence", "terms"):
        best = first(f"{name} best ranking")
        for system in ("first", "EAR-RI", "EAR-RD"):
            assert all(best[query] <= rank for query, rank in first(f"{name} {system} ranking").items())


def test_rankings_are_cut_and_fused(eared: Place) -> None:
    """Of the measured queries alone."""
    one = pq.read_table(eared.artifact("terms EAR-RD ranking") / "ranking.parquet")
    assert set(one["query_id"].to_pylist()) == {"q0", "q6", "q12", "q18"}
    table = pq.read_table(eared.artifact("EAR-RD fused") / "ranking.parquet").to_pydict()
    assert set(table["query_id"]) == {"q0", "q6", "q12", "q18"}
    assert max(table["rank"]) <= 40


def test_two_trainings_choose_from_the_same_expansions(eared: Place, tmp_path: Path) -> None:
    """A second seed trains anew and draws nothing anew, and the first one's models stay what they were."""
    place = eared.copy(tmp_path / "seeds")
    assert place("run", "--set", "seeds=[1,2]", "--set", "fewer=[]", "--set", "passages=null") == 0
    run = next(path.name for path in place.runs.iterdir() if path.name != "tiny")
    executed = {one["label"] for one in place.metrics(run)["steps"] if one["executed"]}
    assert {"terms rd reranker (seed 2)", "sentence ri reranker (seed 2)"} <= executed
    assert all("(seed 2)" in label or label == "results" for label in executed)


def test_with_language_models(eared: Place, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """One asked as it is, with a prompt; one that learnt, in two folds; the first learns from the second's."""
    tree: dict[str, Any] = tiny.ear(beir, encoder)
    model = {"model": str(write_generator(tmp_path / "t5")), "query_tokens": 32, "target_tokens": 16}
    generate = {"number": 3, "new_tokens": 5, "precision": "fp32"}
    learn = {
        "targets": {"kind": "sentence", "documents": "judged"}, "folds": 2,
        "train": tiny.training("components.losses.likelihood.negative_log_likelihood", steps=2),
    }  # fmt: skip
    tree["generators"] = {
        "asked": {"writer": {"model": model, "generate": {**generate, "prompt": "{query} ? We need"}},
                  "learn_from": "taught"},
        "taught": {"writer": {"model": model, "generate": generate, "learn": learn}},
    }  # fmt: skip
    tree |= {"fewer": [], "passages": None, "rerankers": {"rd": tree["rerankers"]["rd"]}}
    place = tiny.place(tmp_path / "place", tree)
    for label in ("data", "bm25 index", "bm25 ranking", "start retriever", "tokens", "start vectors", "start ranking"):
        shutil.copytree(eared.artifact(label), place.store / eared.artifact(label).name)
    assert place("run") == 0
    assert systems(place)[-2:] == ["EAR-RD", "EAR-RD + dense"]
    labels = [one["label"] for one in place.metrics()["steps"]]
    assert {"taught fold 1 generator", "taught fold 2 generator", "taught generator"} <= set(labels)
    assert "asked expansions (train)" not in labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms": {}}, "a generator is one of relevance, writer, file; given: none"),
        ({"terms": {"relevance": {}, "learn_from": "nobody"}}, "learn_from: 'nobody'; accepted: terms"),
        ({"terms": {"writer": {"model": {"model": "x", "layers": 2}}}}, "a generator is not cut"),
    ],
)
def test_a_mistake_in_a_config_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, change: dict[str, Any], message: str
) -> None:
    place = tiny.place(tmp_path, {**tiny.ear(beir, encoder), "generators": change})
    assert place("plan") == 2
    assert message in said()[1]


@pytest.mark.usefixtures("ray")
def test_through_ray_it_is_the_same(
    eared: Place, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers expand, retrieve and predict, one trains: the same rankings as in one process."""
    monkeypatch.setattr("workflows.commands.leave", lambda: None)  # the session serves other tests too
    tree = tiny.ear(beir, encoder)
    tree["generators"].pop("sentence")
    tree["rerankers"].pop("ri")
    tree["passages"] = None
    profile = {"mode": "ray", "retries": 0, "map": {"workers": 2, "threads": 1}, "java": {"workers": 2, "threads": 1}}
    places = [tiny.place(tmp_path / "inline", tree), tiny.place(tmp_path / "ray", tree, **profile)]
    for place in places:
        for label in ("data", "bm25 index", "start retriever", "tokens", "start vectors", "start ranking"):
            shutil.copytree(eared.artifact(label), place.store / eared.artifact(label).name)
        assert place("run") == 0
    assert tiny.results(places[0].store) == tiny.results(places[1].store)
