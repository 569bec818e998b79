"""The guard: a second collection on which trained retrievers must stay about as good as the start model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.components.files import read_json
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from tests.support import tiny, toy

LOSS = 0.3


@pytest.fixture
def tree(beir: Path, encoder: Path, tmp_path: Path) -> dict[str, Any]:
    """The tiny adaptation with a guard: the same documents, and half of the queries."""
    toy.write_data(tmp_path / "other tables", queries=12)
    folder = tiny.write_beir(tmp_path / "other", tmp_path / "other tables")
    guard = {"data": {"format": "beir", "path": str(folder)}, "split": "test", "loss": LOSS}
    return {**tiny.adapt(beir, encoder), "guard": guard}


def _read(folder: Path, tree: dict[str, Any]) -> loading.Experiment:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), [], folder / "runs")


def test_each_retriever_is_measured_on_the_guard_beside_the_start_model(tree: dict[str, Any], tmp_path: Path) -> None:
    outcome = _read(tmp_path, tree).outcome
    rows = [row for row in outcome.rows if row.collection == "other"]
    assert [row.name for row in rows] == ["start model", "warm retriever", "retriever 1"]
    systems = {entry["system"]: entry for entry in outcome.results.inputs["selection"].inputs["systems"]}
    assert {entry["limits"]["guard_loss"] for entry in systems.values()} == {LOSS}
    guarded = {name for name, entry in systems.items() if "guard" in entry}
    assert guarded == {name for name in systems if "warm retriever" in name or "retriever 1" in name}
    [guard] = systems["retriever 1"]["guard"]
    assert guard["metrics"].fingerprint == rows[2].metrics.fingerprint
    assert guard["start"].fingerprint == rows[0].metrics.fingerprint


def test_labels_name_the_collection(tree: dict[str, Any], tmp_path: Path) -> None:
    labels = [node.label for node in graph(_read(tmp_path, tree).wanted)]
    assert sorted(labels) == sorted(set(labels))
    assert {"data (other)", "tokens (other)", "retriever 1 on other vectors"} <= set(labels)


def test_early_outcomes_are_of_the_first_collection(tree: dict[str, Any], tmp_path: Path) -> None:
    outcome = _read(tmp_path, tree).outcome
    for early in outcome.early:
        assert early.retrieval is not None
        assert early.retrieval.data.fingerprint == outcome.data.fingerprint


def test_a_run_excludes_a_system_whose_retriever_lost_too_much(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["guard"]["loss"] = 1e-9
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    metrics = place.metrics()
    selection = read_json(place.artifact("selection") / "selection.json")
    measure = selection["measure"]
    values = {(row["system"], row["collection"]): row["value"] for row in metrics["rows"] if row["measure"] == measure}
    lost = {name: values["start model", "other"] - values[name, "other"] for name in ("warm retriever", "retriever 1")}
    excluded = selection["budget"]["excluded"]
    assert {name for name, loss in lost.items() if loss > 1e-9} == {name for name in lost if name in excluded}
    for name in lost.keys() & excluded.keys():
        [entry] = excluded[name]
        assert (entry["limit"], entry["value"]) == ("guard_loss", pytest.approx(lost[name]))
