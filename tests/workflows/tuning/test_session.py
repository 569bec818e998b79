"""Schedulers over rungs: when they compare trials, and what they know of earlier ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler

from sparring.workflows.tuning import session
from sparring.workflows.tuning.rungs import Rung
from sparring.workflows.tuning.session import Start, halving, make_scheduler, time_of
from sparring.workflows.tuning.trials import Trial, TrialTable


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("rungs", [2, 3, 4, 5, 6, 9, 25])
def test_trials_are_compared_at_each_rung_but_the_last(rungs: int, factor: int) -> None:
    """By Ray Tune's own account of where it compares."""
    scheduler = ASHAScheduler(metric="value", mode="max", **halving(rungs, factor))
    compared = [time for time, _ in scheduler._brackets[0]._rungs]
    assert sorted(compared) == [time_of(rung, factor) for rung in range(1, rungs)]
    assert time_of(rungs, factor) >= scheduler._max_t > time_of(rungs - 1, factor)


def scheduler(table: TrialTable, monkeypatch: pytest.MonkeyPatch, **tuning: Any) -> Any:
    """The scheduler of a tuning with two validations and two systems."""
    rungs = [Rung(1, "retriever", 1), Rung(1, "retriever", 2), Rung(1), Rung(2)]
    monkeypatch.setattr(session, "list_rungs", lambda tuned, point: rungs)
    section = {"scheduler": "asha", "reduction_factor": 2, "goal": "max", "seed": 0, **tuning}
    tuned: Any = SimpleNamespace(tuning=SimpleNamespace(**section))
    return make_scheduler(table, tuned)


def reported(scheduler: Any, number: int, *values: float) -> list[str]:
    """What a scheduler decides about a trial at each rung."""
    trial = SimpleNamespace(trial_id=str(number), config={"number": number})
    scheduler.on_trial_add(None, trial)
    return [
        scheduler.on_trial_result(None, trial, {"time": time_of(rung, 2), "value": value})
        for rung, value in enumerate(values, 1)
    ]


@pytest.fixture
def table(tmp_path: Path) -> TrialTable:
    return TrialTable(tmp_path, "RR@10", ["warm", "last"], "dev", "max", ["a"], "0123")


def test_a_trial_is_stopped_at_a_validation(table: TrialTable, monkeypatch: pytest.MonkeyPatch) -> None:
    asha = scheduler(table, monkeypatch)
    assert reported(asha, 0, 0.5, 0.6) == ["CONTINUE", "CONTINUE"]
    assert reported(asha, 1, 0.6, 0.5) == ["CONTINUE", "STOP"]
    assert reported(asha, 2, 0.4) == ["STOP"]


def test_a_resumed_tuning_compares_with_the_finished_trials(table: TrialTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that wait again report anew, and are not told twice."""
    table.trials = [
        Trial(0, {}, {}, "done", [0.7, 0.8], rungs=[(0, 0.5), (1, 0.6), (2, 0.7), (3, 0.8)]),
        Trial(1, {}, {}, "stopped", [], rungs=[(0, 0.6), (1, 0.5)]),
        Trial(2, {}, {}, "waiting", [], rungs=[(0, 0.9)]),
    ]
    asha = scheduler(table, monkeypatch)
    assert reported(asha, 3, 0.54) == ["STOP"]
    assert reported(asha, 4, 0.56, 0.54) == ["CONTINUE", "STOP"]


def test_hyperband_compares_some_trials_later_or_never(table: TrialTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's bracket is the same each time that the command is repeated."""
    brackets = []
    for _ in range(2):
        hyperband = scheduler(table, monkeypatch, scheduler="hyperband")
        for number in range(40):
            reported(hyperband, number)
        brackets.append([len(hyperband._trial_info[str(number)]._rungs) for number in range(40)])
    assert brackets[0] == brackets[1]
    assert set(brackets[0]) == {3, 2, 1, 0}
    second = scheduler(table, monkeypatch, scheduler="hyperband", seed=1)
    for number in range(40):
        reported(second, number)
    assert [len(second._trial_info[str(number)]._rungs) for number in range(40)] != brackets[0]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ray's placement groups, and a clock that moves a second with each look."""
    seconds = iter(range(1, 10**6))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    groups: dict[str, Any] = {}
    monkeypatch.setattr("ray.util.placement_group_table", lambda: groups)
    return groups


WAITING = [SimpleNamespace(status="PENDING")]


def test_trials_that_find_no_memory_say_so_and_end(groups: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    groups["trial"] = {"state": "PENDING", "bundles": {0: {"memory": 2.0**30}}}
    start = Start(2.0**30, 60)
    for _ in range(60):
        start.check(WAITING)
    assert capsys.readouterr().err == (
        "waiting for 1.0 GiB of memory of one node, at most 60 s (wait_seconds in the profile): other work on the "
        "cluster holds it\n"
    )
    start.check(WAITING)
    with pytest.raises(RuntimeError, match=r"^no node had 1\.0 GiB of memory free for a trial within 60 s "):
        start.check(WAITING)


def test_trials_that_start_or_run_are_not_waited_for(
    groups: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    start = Start(2.0**30, 60)
    groups["others"] = {"state": "PENDING", "bundles": {0: {"CPU": 4.0}}}
    groups["trial"] = {"state": "CREATED", "bundles": {0: {"memory": 2.0**30}}}
    groups["next"] = {"state": "PENDING", "bundles": {0: {"memory": 2.0**30}}}
    for _ in range(100):
        start.check(WAITING)
    del groups["trial"]
    for _ in range(100):
        start.check([*WAITING, SimpleNamespace(status="RUNNING")])
    assert capsys.readouterr().err == ""
