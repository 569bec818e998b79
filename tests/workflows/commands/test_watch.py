"""A run seen from another shell."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from sparring.workflows.commands import watch
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.estimating import run_time
from sparring.workflows.estimating.estimate import Estimate, Row
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.estimating.site import site
from sparring.workflows.experiments import loading
from sparring.workflows.quantities import between
from sparring.workflows.report.run_folder import at_work
from sparring.workflows.running.executor import execute
from sparring.workflows.store.dag import step
from sparring.workflows.store.planner import pending
from sparring.workflows.store.progress import Progress
from sparring.workflows.store.store import FAILURE, Store
from sparring.workflows.tuning.report import format_table
from sparring.workflows.tuning.trials import Trial, TrialTable
from tests.support import steps, tiny
from tests.support.tiny import ROOT, Place, Said


def test_a_finished_run(played: Place, said: Said) -> None:
    assert played("show", "--watch") == 0
    (line,) = said()[0].splitlines()
    whole = line.split()[3]
    assert line == f"tiny: {whole} of {whole} steps done, 0 to run"


def test_who_holds_an_artifact(tmp_path: Path) -> None:
    store, node = Store(tmp_path), step("w", steps.wait, started=str(tmp_path / "began"), go=str(tmp_path / "go"))
    assert store.holders([node]) == {}
    thread = threading.Thread(target=execute, args=(node, store, None), kwargs={"on_wait": print})
    thread.start()
    while not (tmp_path / "began").exists():
        time.sleep(0.01)
    assert store.holders([node])[node.name].startswith("process ")
    (tmp_path / "go").touch()
    thread.join()
    assert store.holders([node]) == {}
    assert store.is_done(node)


def test_a_run_on_its_way(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    experiment, store = loading.read(place.config, [], place.runs), Store(place.store)
    waiting = pending(experiment.wanted, store)
    whole = len(waiting)
    lines = watch.view(experiment, store, waiting, "do it again").splitlines()
    assert lines == [
        f"tiny: 0 of {whole} steps done, {whole} to run; there is no store at {place.store}",
        "  No step is running. A job that was just submitted may still be starting.",
        "  Otherwise resume with: do it again (and the --cluster that it had)",
        f"  then: data, bm25 index, bm25 ranking (test), BM25 measures and {whole - 4} more",
    ]
    busy, bad = waiting[0], waiting[1]
    for node in (busy, bad):
        store.path(node).mkdir(parents=True)
    (store.path(bad) / FAILURE).write_text("Traceback\nOSError: the disk is full\n")
    monkeypatch.setattr(store, "holders", lambda nodes: {busy.name: "process 7 on here"})
    assert (
        "  [collection] data  (process 7 on here)" in watch.view(experiment, store, waiting, "do it again").splitlines()
    )
    rows = [Row(node, None, seconds=60.0, spread=(0.5, 2.0)) for node in waiting]
    folder = site(Cluster(), tmp_path)
    run_time.write_estimate(experiment.run, Estimate(rows, folder, Rates(folder)))
    first = watch.view(experiment, store, waiting, "do it again").splitlines()[0]
    assert first == f"tiny: 0 of {whole} steps done, {whole} to run, {between(30.0 * whole, 120.0 * whole)} left"
    with Progress(store.path(busy), 200, "texts") as counted:
        counted.set_done(50, "loss 0.5")
    lines = watch.view(experiment, store, waiting, "do it again").splitlines()
    assert lines[1].startswith("  [collection] data  ██████░")
    assert "25%  50/200 texts" in lines[1]
    assert lines[2:] == [
        "  failed: bm25 index: OSError: the disk is full",
        f"  then: bm25 index, bm25 ranking (test), BM25 measures, start retriever and {whole - 5} more",
    ]
    monkeypatch.setattr(store, "holders", lambda nodes: {})  # the driver was killed
    lines = watch.view(experiment, store, waiting, "do it again").splitlines()
    assert "  stopped: data at 50/200 texts loss 0.5; what was saved of it is kept" in lines
    training = next(node for node in waiting if node.function.__name__ == "train")
    store.path(training).mkdir()
    with Progress(store.path(training), 30, "updates") as counted:
        counted.set_done(15)
    report = f"  stopped: {training.label} at 15/30 updates; "
    lines = watch.view(experiment, store, waiting, "do it again").splitlines()
    assert f"{report}no checkpoint was saved yet: it begins anew" in lines
    for update in (4, 12):
        (store.path(training) / "checkpoints" / f"update-{update:06d}").mkdir(parents=True)
    lines = watch.view(experiment, store, waiting, "do it again").splitlines()
    assert f"{report}it goes on from update 12" in lines


def test_a_view_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wraps or scrolls away cannot be drawn anew in its place."""
    monkeypatch.setenv("COLUMNS", "11")
    monkeypatch.setenv("LINES", "3")
    assert watch.fitted("0123456789abc\nsecond\nthird") == "0123456789\nsecond"


def test_it_says_that_it_waits_where_nothing_runs(
    played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert place("show", "--watch") == 130
    assert said()[0].splitlines()[-1] == "  watching until it goes on (Ctrl-C ends this)"


def test_from_another_shell(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    """It follows a run to its end, and is told of steps as they come; the run itself is not disturbed."""
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    looks = subprocess.Popen(
        [sys.executable, "-m", "workflows", *place.words("show", "--watch")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looks.stdout is not None
    first = looks.stdout.readline()  # it looks before the run begins, which may be quick
    assert place("run") == 0
    out, _ = looks.communicate(timeout=60)
    assert looks.returncode == 0
    heads = [line for line in [first, *out.splitlines()] if line.startswith("tiny: ")]
    assert heads[-1].endswith(" steps done, 0 to run")
    assert len(heads) > 1


def test_a_tuning(played: Place, tmp_path: Path, said: Said) -> None:
    """Its trials, until none is to go on; `show` has them too, where the config itself was not run."""
    section = {"measure": "RR@10", "systems": ["warm retriever"], "space": {"rounds": {"grid": [2]}}}
    place = tiny.place(tmp_path, {**yaml.safe_load(played.config.read_text()), "tune": section})
    trials = TrialTable(place.runs / "tiny", "RR@10", ["warm", "last"], "dev", "max", ["rate"], "0123")
    trials.trials = [Trial(0, {}, {"rate": 0.1}, "done", [0.2, 0.3]), Trial(1, {}, {"rate": 0.2}, "running", [0.1])]
    trials.save()
    thread = threading.Thread(target=place, args=("show", "--watch"))
    thread.start()
    time.sleep(1.5)
    assert thread.is_alive()
    trials.trials[1].state = "stopped"
    trials.save()
    thread.join()
    out = said()[0]
    assert out.startswith("RR@10, dev split; 2 trials: 1 done, 1 waiting\n")  # whoever ran it was killed
    assert "nothing is running; repeat `tune` to resume" in out
    assert place("show") == 0
    assert said()[0] == f"of the config as it was then; `tune` begins anew:\n{format_table(trials)}\n"
    assert place("show", "--json") == 0
    assert json.loads(said()[0]) == json.loads((trials.folder / "trials.json").read_text())


def test_a_tuning_shows_the_steps_that_its_trials_run(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are no step of the run; and after it the run of the same config is followed to its end."""
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    experiment, store = loading.read(place.config, [], place.runs), Store(place.store)
    data = pending(experiment.wanted, store)[0].name
    trials = TrialTable(place.runs / "tiny", "RR@10", ["warm"], "dev", "max", ["rate"], "0123")
    trials.trials = [Trial(0, {}, {}, "running", artifacts=["train-0123456789ab", "search-0123456789ab", data])]
    trials.save()
    held = dict.fromkeys(("train-0123456789ab", data), "process 7 on here")
    monkeypatch.setattr(Store, "holders", lambda self, nodes: {n.name: held[n.name] for n in nodes if n.name in held})

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with at_work(experiment.run):
        assert place("show", "--watch") == 130
    out, data_line = said()[0], "  [collection] data  (process 7 on here)"
    assert out.startswith("RR@10, dev split; 1 trial: 1 running\n")
    assert out.splitlines()[-2:] == ["  train-0123456789ab  (process 7 on here)", data_line]
    trials.trials[0].state, trials.trials[0].measures = "done", [0.5]
    trials.save()
    assert place("show", "--watch") == 130
    assert said()[0].splitlines()[1] == data_line
