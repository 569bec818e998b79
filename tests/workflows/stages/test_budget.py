"""A budget: limits on the chosen system, by what the run measures of each system."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.evaluation.selection import FILE
from sparring.components.files import read_json
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.running.executor import execute
from sparring.workflows.stages.budget import latency
from sparring.workflows.steps import latency as measuring
from sparring.workflows.store.dag import Step, canonical, graph
from sparring.workflows.store.object_store import open_store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.deployable import Deployment
from sparring.workflows.tuning.config import read_tuning
from tests.support import tiny, toy
from tests.support.errors import refused

VENDOR = {"rerank_url": "http://localhost:9000/v1/rerank"}


def untrained(beir: Path, encoder: Path, **more: Any) -> dict[str, Any]:
    """DPR without its training."""
    tree = tiny.dpr(beir, encoder)
    return {**{key: tree[key] for key in ("recipe", "data", "k", "encode", "retriever")}, **more}


def read(folder: Path, tree: dict[str, Any], *assignments: str) -> Experiment:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), list(assignments), folder)


class InProcess:
    """A child process's work, done here."""

    def __init__(self, threads: int) -> None:
        self._work: Callable[..., None] | None = None

    def tell(self, *message: Any) -> None:
        if self._work is None:
            make, options = message
            self._work = make(**options)
        else:
            self._work(*message)

    def end(self) -> int:
        return 0


@pytest.mark.parametrize("recipe", ["dpr", "ar2", "simlm", "ear", "coder", "adapt"])
def test_a_budget_adds_measurements_and_changes_the_choice_alone(
    tmp_path: Path, beir: Path, encoder: Path, recipe: str
) -> None:
    tree = {**getattr(tiny, recipe)(beir, encoder), "contenders": {"vendor": VENDOR}}
    if recipe == "adapt":
        tree["fast"] = False  # otherwise the limit adds a smaller retriever
    before = {node.fingerprint for node in graph(read(tmp_path, tree).wanted)}
    outcome = read(tmp_path, {**tree, "budget": {"p95_ms": 50, "disk_gb": 1}}).outcome
    new = [node for node in graph([outcome.results]) if node.fingerprint not in before]
    assert {node.function.__name__ for node in new} == {"measure_latency", "select", "results"}
    assert "its ranking comes from http://localhost:9000" in str(outcome.needs["vendor"])
    assert isinstance(outcome.needs["BM25"], Step)
    selection = outcome.results.inputs["selection"]
    entries = {entry["system"]: entry for entry in selection.inputs["systems"]}
    for name, entry in entries.items():
        assert canonical(entry["measured"]) == canonical(outcome.needs[name])
    assert entries["BM25"]["limits"] == {"p95_ms": 50.0, "disk_gb": 1.0}


def test_without_limits_systems_are_measured(tmp_path: Path, beir: Path, encoder: Path) -> None:
    outcome = read(tmp_path, untrained(beir, encoder, budget={})).outcome
    assert [entry["limits"] for entry in outcome.results.inputs["selection"].inputs["systems"]][:1] == [{}]
    assert isinstance(outcome.needs["start model"], Step)
    assert read(tmp_path, untrained(beir, encoder)).outcome.needs == {}


def test_a_measurement_depends_on_what_the_system_is_read_from(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = untrained(beir, encoder, budget={})
    rows, deeper = (read(tmp_path, tree, *sets).outcome for sets in ([], ["k=7"]))
    measured = rows.needs["start model"]
    assert isinstance(measured, Step)
    deployment = measured.inputs["system"]
    assert isinstance(deployment, Deployment)
    assert set(measured.upstream) == {*deployment.artifacts}
    assert rows.retrieval.vectors.fingerprint in {node.fingerprint for node in measured.upstream}
    assert deeper.needs["start model"].fingerprint != measured.fingerprint  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("assignment", "key", "code"),
    [
        ("evaluate.select=null", "budget", "no-selection"),
        ("evaluate.select=test", "budget", "no-selection"),
        ("budget.p95_ms=0", "budget.p95_ms", "too-small"),
        ("budget.p95=5", "budget.p95", "unknown-key"),
    ],
)
def test_a_budget_that_limits_nothing_is_refused(
    tmp_path: Path, beir: Path, encoder: Path, assignment: str, key: str, code: str
) -> None:
    with refused(key, code):
        read(tmp_path, untrained(beir, encoder, budget={"p95_ms": 50}), assignment)


def test_a_run_chooses_within_the_budget(
    tmp_path: Path, beir: Path, encoder: Path, mistakes: list[UserError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only BM25 takes so little disk. Without it no system is within the budget, and none is searched with unasked."""
    monkeypatch.setattr(measuring, "Child", InProcess)
    monkeypatch.setattr(measuring, "WARM_SECONDS", 0.0)
    place = tiny.place(tmp_path / "place", untrained(beir, encoder, budget={}))
    assert place("run") == 0
    metrics = place.metrics()
    needs = {entry["system"]: entry for entry in metrics["needs"]}
    assert needs["start model"]["disk_gb"] > needs["BM25"]["disk_gb"] > 0
    assert needs["BM25"]["p50_ms"] <= needs["BM25"]["p95_ms"] <= needs["BM25"]["p99_ms"]
    assert needs["start model"]["memory_gb"] > 0.05
    assert metrics["leading"].get("budget") is None
    assert '<th scope="col">p95</th>' in (place.runs / "tiny" / "report.html").read_text()

    disk = 1.01 * needs["BM25"]["disk_gb"]
    limited = tiny.place(tmp_path / "place", untrained(beir, encoder, budget={"disk_gb": disk}))
    assert limited("run") == 0
    selection = read_json(limited.artifact("selection") / FILE)
    assert selection["budget"]["excluded"].keys() == needs.keys() - {"BM25"}
    outcome, store = (
        read(limited.folder, untrained(beir, encoder, budget={"disk_gb": disk})).outcome,
        open_store(place.where),
    )
    answering = deployable.asked(outcome, store)
    assert answering is not None
    assert answering.name == "BM25"

    none = tiny.place(tmp_path / "place", untrained(beir, encoder, budget={"disk_gb": disk / 2}))
    assert none("run") == 0
    assert none.metrics()["verdict"]["sentences"][0].startswith(
        "No system is within the budget. The nearest is BM25 (disk "
    )
    for command in (["search", "words"], ["export", str(tmp_path / "out")]):
        assert none(*command) == 2
    assert [(mistake.key, mistake.code) for mistake in mistakes] == [("--system", "beyond-budget")] * 2
    assert none("search", "words", "--system", "BM25") == 0


def test_a_new_process_answers(tmp_path: Path, beir: Path, encoder: Path) -> None:
    place = tiny.place(tmp_path / "place", untrained(beir, encoder))
    assert place("run", "--until", "bm25 index") == 0
    outcome = read(place.folder, untrained(beir, encoder)).outcome
    node = latency(outcome.ranked["BM25"], "dev")
    assert isinstance(node, Step)
    store = open_store(place.where)
    assert execute(node, store, toy.INLINE, on_wait=lambda holder: None)
    summary = (store.record(node) or {})["summary"]
    assert summary["queries"] == 4
    assert summary["memory_gb"] > 0.05


def test_trials_of_a_tuning_have_no_budget(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """They measure the selection queries, so none could be selected."""
    tune = {"space": {"train.learning_rate": {"choice": [1e-5, 1e-4]}}, "split": "dev", "trials": 2, "measure": "RR@10"}
    tree = {**tiny.dpr(beir, encoder), "budget": {"p95_ms": 50}, "tune": tune}
    path = tiny.write(tmp_path / "own.yaml", tree)
    arguments = argparse.Namespace(config=path, assignments=[], runs=tmp_path / "runs")
    trial = read_tuning(arguments, to_run=False).experiment({"train.learning_rate": 1e-5})
    assert trial.config.budget.limits == {}
    assert not [node for node in graph(trial.wanted) if node.function is measuring.measure_latency]
