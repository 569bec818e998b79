"""Cross-validation, whole runs in seconds: every query is measured once, by models that have not seen it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support import recipes, tiny
from tests.support.tiny import Place


@pytest.fixture(scope="module")
def judged(toys: Path, beir: Path) -> Path:
    """The toy collection with all of its judgements in one split."""
    return recipes.in_one_split(shutil.copytree(beir, toys / "judged"))


def tree_of(folder: Path, inner: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A cross-validation of an experiment, whose file is written."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"recipe": "folds", "experiment": str(tiny.write(folder / "inner.yaml", inner)), "folds": 3, **keys}


@pytest.fixture(scope="module")
def folded(toys: Path, judged: Path, encoder: Path) -> Place:
    """A finished run with two seeds."""
    inner = {**tiny.dpr(judged, encoder), "seeds": [1, 2]}
    place = tiny.place(toys / "folded", tree_of(toys / "folded", inner))
    assert place("run") == 0
    return place


def steps_of(place: Place, function: str) -> dict[str, Any]:
    """By label, the steps with a function."""
    outcome = loading.read(place.config, [], place.runs).outcome
    return {node.label: node for node in graph([outcome.results]) if node.function.__name__ == function}


def test_every_query_is_measured_once_by_models_that_have_not_seen_it(folded: Place, judged: Path) -> None:
    store = Store(folded.store)
    lines = (judged / "qrels" / "test.tsv").read_text().splitlines()[1:]
    wanted = {line.split("\t")[0] for line in lines if not line.endswith("\t0")}
    seen: list[str] = []
    for data in steps_of(folded, "ingest").values():
        rows = pq.read_table(store.path(data) / "qrels.parquet").to_pylist()
        splits = {row["split"]: {query["query_id"] for query in rows if query["split"] == row["split"]} for row in rows}
        assert splits.keys() == {"train", "dev", "test"}
        assert not splits["test"] & (splits["train"] | splits["dev"])
        assert not splits["train"] & splits["dev"]
        seen += splits["test"]
    assert len(seen) == len(set(seen))
    assert set(seen) >= wanted
    for pooled in steps_of(folded, "pool").values():
        values = pq.read_table(store.path(pooled) / "per_query.parquet").to_pylist()
        assert {row["query_id"] for row in values} == wanted
        parts = [pq.read_table(store.path(fold) / "per_query.parquet").to_pylist() for fold in pooled.inputs["folds"]]
        assert values == [row for part in parts for row in part]


def test_a_search_names_no_system_where_none_can_be_asked(folded: Place, said: tiny.Said) -> None:
    assert folded("search", "some words") == 0
    assert said()[1].endswith(" searches here; the experiment that this is made of asks others\n")


def test_what_folds_select_themselves_is_measured_and_compared_first(folded: Place, said: tiny.Said) -> None:
    metrics = folded.metrics()
    first = metrics["comparisons"][0]
    assert (first["system"], first["baseline"], first["seeds"]) == ("best by dev", "best untrained by dev", [1, 2])
    assert {row["seed"] for row in metrics["rows"] if row["system"] == "retriever"} == {1, 2}
    store = Store(folded.store)
    for system, kind in {"best by dev": (True, False), "best untrained by dev": (False,)}.items():
        pooled = steps_of(folded, "pool_selected")[f"{system} measures (seed 2)"]
        values = pq.read_table(store.path(pooled) / "per_query.parquet").to_pylist()
        expected = []
        for fold in pooled.inputs["folds"]:
            candidates = json.loads((store.path(fold["selection"]) / "selection.json").read_text())["candidates"]
            best = max(
                (candidate for candidate in candidates if candidate["trained"] in kind),
                key=lambda candidate: candidate["value"],
            )
            expected += pq.read_table(store.path(fold["measures"][best["system"]]) / "per_query.parquet").to_pylist()
        assert values == expected
    said()
    assert folded("show") == 0
    assert "than best untrained by dev (" in " ".join("".join(said()).split())


def test_what_is_of_several_folds_cannot_be_exported(folded: Place, tmp_path: Path, said: tiny.Said) -> None:
    assert folded("export", str(tmp_path / "out")) == 2
    assert "no system of this run has a ranking of its own" in said()[1]
    assert not (tmp_path / "out").exists()


def test_no_fold_s_retriever_is_taken_for_the_experiment_s(judged: Path, encoder: Path, tmp_path: Path) -> None:
    """Each has been trained on queries that the others measure."""
    folds = tiny.write(tmp_path / "folds.yaml", tree_of(tmp_path, tiny.dpr(judged, encoder)))
    over = {
        "recipe": "zeroshot",
        "experiment": str(folds),
        "k": 9,
        "collections": {"one": {"data": {"format": "beir", "path": str(judged)}}},
    }
    with pytest.raises(
        UserError, match=r"experiment: .*folds\.yaml: has several last retrievers, one a fold; accepted"
    ):
        loading.read(tiny.write(tmp_path / "over.yaml", over), [], tmp_path)


def test_a_fold_has_the_systems_that_adapt_itself_adds(judged: Path, encoder: Path, tmp_path: Path) -> None:
    inner = {key: value for key, value in tiny.adapt(judged, encoder).items() if key != "rm3"}
    names = {
        system.name
        for system in loading.read(
            tiny.write(tmp_path / "folds.yaml", tree_of(tmp_path, inner)), [], tmp_path
        ).outcome.rows
    }
    assert {"BM25 with RM3", "start model by neighbours", "retriever 1"} <= names


def test_other_judgements_are_not_divided(judged: Path, encoder: Path, tmp_path: Path) -> None:
    inner = {**tiny.dpr(judged, encoder)}
    inner["evaluate"] = {"other_qrels": {"lenient": {"format": "beir", "path": str(judged)}}}
    config = tiny.write(tmp_path / "folds.yaml", tree_of(tmp_path, inner))
    with pytest.raises(UserError, match=r"measured on 'lenient' too \(evaluate\.other_qrels or guard\), whose"):
        loading.read(config, [], tmp_path)


def test_a_collection_with_training_queries_of_its_own_is_refused(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said
) -> None:
    place = tiny.place(tmp_path / "place", tree_of(tmp_path, tiny.dpr(beir, encoder)))
    assert place("run") == 2
    assert "the collection already has a split" in said()[1]


def test_an_experiment_over_several_collections_is_refused(judged: Path, encoder: Path, tmp_path: Path) -> None:
    file = tiny.write(tmp_path / "one.yaml", tiny.dpr(judged, encoder))
    inner = {"recipe": "compare", "experiments": {"a": str(file), "b": str(file)}, "baseline": "a", "systems": ["BM25"]}
    config = tiny.write(tmp_path / "folds.yaml", tree_of(tmp_path, inner))
    with pytest.raises(UserError, match=r"inner\.yaml: recipe: compare: it has no data, evaluate; accepted: one that"):
        loading.read(config, [], tmp_path)


@pytest.mark.parametrize(
    ("change", "sets", "message"),
    [
        ({"evaluate": {"split": "dev", "select": None}}, [], "it is measured on 'dev', and a fold is `test`"),
        ({}, ["data.hold_out={dev: {of: test, share: 0.5}}"], "sets: data.hold_out="),
        ({}, [], "data.hold_out: val: a fold makes train, dev, test alone; accepted: none but these"),
    ],
)
def test_what_a_fold_would_not_keep_is_refused(
    judged: Path, encoder: Path, tmp_path: Path, change: dict[str, Any], sets: list[str], message: str
) -> None:
    inner = {**tiny.dpr(judged, encoder), **change}
    if not change and not sets:
        inner["data"] = {**inner["data"], "hold_out": {"val": {"of": "test", "share": 0.5}}}
    config = tiny.write(tmp_path / "folds.yaml", {**tree_of(tmp_path, inner), "sets": sets})
    with pytest.raises(UserError, match=re.escape(message)):
        loading.read(config, [], tmp_path)
