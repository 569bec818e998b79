"""A trial's own process: what it reports of its steps, which run elsewhere, and how it ends them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.workflows.command_line import parser
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.resources import end_warm
from sparring.workflows.store.store import Store
from sparring.workflows.tuning import trial as trials
from sparring.workflows.tuning.config import TunedExperiment, read_tuning
from sparring.workflows.tuning.rungs import Rung, list_rungs, read_validations, validated
from sparring.workflows.tuning.trial import TrialSteps, Waits, run_trial
from tests.support import tiny
from tests.support.tiny import Place
from tests.support.tuning import GAME, WARM, tree

pytestmark = pytest.mark.timeout(600)

Report = dict[str, Any]
UPDATES = "retriever.warm.train.updates"


@pytest.fixture(scope="module")
def place(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tuning whose warm retriever validates after each of four updates."""
    experiment = tree(beir, encoder, scheduler="asha", reduction_factor=2)
    train = experiment["retriever"]["warm"]["train"]
    train |= {"updates": 4, "validate_on_dev": {"every": 1, "from_start": True, "queries": 4, "negatives": 2}}
    experiment["tune"]["space"][UPDATES] = {"grid": [4, 8]}
    return tiny.place(tmp_path_factory.mktemp("trials"), experiment)


@pytest.fixture
def machine() -> Machine:
    return resolve_machine(Cluster.model_validate(tiny.INLINE))


@pytest.fixture
def tuned(place: Place) -> TunedExperiment:
    return read_tuning(parser().parse_args(place.words("tune")))


def remote(function: Callable[..., Any]) -> Any:
    """A method of an actor that runs in this process."""
    return SimpleNamespace(remote=function, options=lambda name: SimpleNamespace(remote=function))


@pytest.fixture
def run(place: Place, tuned: TunedExperiment, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a trial in this process, up to a number of reports after which it is stopped; returns the reports."""
    task = {
        "path": str(tuned.path),
        "tree": tuned.tree,
        "run": str(tuned.run),
        "store": str(place.store),
        "machine": machine,
    }
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # which `TrialSteps` replaces
    steps = TrialSteps(task)
    runner = SimpleNamespace(reach=remote(steps.reach), progress=remote(steps.progress))
    monkeypatch.setattr(trials, "_runner", lambda task: runner)
    monkeypatch.setattr("ray.wait", lambda tasks, timeout: (tasks, []))
    monkeypatch.setattr("ray.get", lambda value: value)

    def run_it(point: dict[str, Any], *, reports: int = 99) -> list[Report]:
        reported: list[Report] = []

        def report(values: Report) -> None:
            reported.append(values)
            if len(reported) == reports:
                sys.exit(0)  # as Tune does

        monkeypatch.setattr("ray.tune.report", report)
        trial = {"number": 1, "point": point, "seconds": 1.0, "steps": 2}
        if reports < 99:
            with pytest.raises(SystemExit):
                run_trial(trial, task=task)
        else:
            run_trial(trial, task=task)
        return reported

    return run_it


def test_rungs_are_some_validations_and_all_measures(tuned: TunedExperiment) -> None:
    """Of four validations the first, the second and the fourth, as one of two trials continues."""
    validations = [Rung(1, "warm retriever", number) for number in (1, 2, 4)]
    assert list_rungs(tuned, {}) == [*validations, Rung(1), Rung(2)]


def test_a_trial_reports_each_rung_once_and_the_same_again(run: Any, tuned: TunedExperiment, place: Place) -> None:
    """The first run makes everything; the second reads it from the store, as a trial that is resumed."""
    first = run({})
    assert [(report["rung"], report["time"]) for report in first] == [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16)]
    assert [report.get("systems") for report in first] == [None, None, None, 1, 2]
    assert first[-1]["measure"] == first[-1]["value"]
    (node,) = validated(tuned.measure_steps(tuned.experiment({}))[0])
    validations = read_validations(node, Store(place.store), "max")
    assert len(validations) == 4  # the start model's is left out
    assert [report["value"] for report in first[:3]] == [validations[number] for number in (0, 1, 3)]
    assert first[-1]["steps"] > 2
    assert first[-1]["seconds"] > 1.0
    again = run({})
    assert [{**report, "steps": 0, "seconds": 0} for report in again] == [
        {**report, "steps": 0, "seconds": 0} for report in first
    ]
    assert (again[-1]["steps"], again[-1]["seconds"]) == (2, 1.0)


def test_a_training_with_more_validations_is_compared_at_those_of_the_config(run: Any) -> None:
    reports = run({UPDATES: 8, WARM: 2e-3}, reports=4)
    assert [report["rung"] for report in reports] == [0, 1, 2, 3]


def test_lower_is_better_where_the_validation_or_the_tuning_says_so(tuned: TunedExperiment, place: Place) -> None:
    (node,) = validated(tuned.measure_steps(tuned.experiment({}))[0])
    validation = node.inputs["config"].validate_on_dev
    store: Any = SimpleNamespace(path=lambda node: place.folder)
    log = '{"update": 0, "dev RR": 0.1, "dev loss": 9}\n{"update": 1, "dev RR": 0.5, "dev loss": 3}\n{"update": 2, "dev'
    (place.folder / "metrics.jsonl").write_text(log)
    assert read_validations(node, store, "max") == [0.5]
    assert read_validations(node, store, "min") == [-0.5]
    config = node.inputs["config"].model_copy(
        update={"validate_on_dev": validation.model_copy(update={"measure": "loss"})}
    )
    lossy: Any = SimpleNamespace(inputs={**node.inputs, "config": config})
    assert read_validations(lossy, store, "max") == [-3]
    assert read_validations(lossy, store, "min") == [3]


def test_a_trial_that_fails_says_why(run: Any) -> None:
    assert run({WARM: 1e38})[-1]["failed"].startswith("step 'warm retriever' failed: update ")


@pytest.mark.parametrize("running", [False, True])
def test_a_stopped_trial_ends_the_steps_that_still_run(
    run: Any, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves their process to the next trial where none runs."""
    run({})
    killed: list[str] = []
    monkeypatch.setattr(trials, "_kill_runner", lambda: killed.append("killed"))
    if running:
        run({GAME: 5e-3, WARM: 7e-3}, reports=1)  # a report while its steps run
    else:
        run({}, reports=1)
    assert killed == ["killed"] * running


def test_a_step_that_waits_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Waits(sys.stderr)
    print("waiting for 1 CPU of one node, at most 12 s", file=waits)
    print("something else", file=waits, flush=True)
    assert waits.lines == ["waiting for 1 CPU of one node, at most 12 s"]
    assert capsys.readouterr().err == "waiting for 1 CPU of one node, at most 12 s\nsomething else\n"


def test_workers_of_a_step_are_given_back_on_a_cluster(
    place: Place, tuned: TunedExperiment, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another trial may wait for the processors of an idle training worker."""
    assert trials.end_warm is end_warm
    ended: list[int] = []
    monkeypatch.setattr(trials, "end_warm", lambda: ended.append(1))
    monkeypatch.setattr(trials, "execute", lambda *_, **__: True)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    task = {"path": str(tuned.path), "tree": tuned.tree, "run": str(tuned.run), "store": str(place.store)}
    for address, count in ((None, 0), ("auto", 1)):
        ended.clear()
        cluster = machine.cluster.model_copy(update={"address": address})
        joined = Machine(cluster, nodes=1, cores=2, cpus=2, gpus=0.0, memory=1e9)
        assert TrialSteps({**task, "machine": joined}).reach({WARM: 3e-4}, 0) == ""
        assert bool(ended) == bool(count)
