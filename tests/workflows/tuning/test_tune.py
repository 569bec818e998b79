"""Whole tunings: shared steps run once, trials that are behind are stopped, and a repeated command resumes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparring.components.config import UserError
from sparring.workflows.command_line import main, parser
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.experiments import loading
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store.dag import StepFailed
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.tuning import tune
from sparring.workflows.tuning.config import read_tuning
from sparring.workflows.tuning.report import format_value
from tests.support import tiny
from tests.support.tiny import ROOT, Place, Said
from tests.support.tuning import GAME, WARM, tree

pytestmark = pytest.mark.timeout(900)  # each trial is a process that imports torch: minutes on a busy machine


def run_tuning(place: Place, *words: str) -> Path:
    """Run `tune` in this process and the session's Ray, without the run of the best trial."""
    return tune.tune(parser().parse_args(place.words("tune", *words)), Store(place.store), lambda best: f"run {best}")


def trials(place: Place, run: str = "tiny") -> list[dict[str, Any]]:
    """The trials in trials.json."""
    return list(json.loads((place.runs / run / "trials.json").read_text())["trials"])


def records(place: Place, function: str = "*") -> dict[str, tuple[float, float]]:
    """When each artifact in the store was begun and finished."""
    times = {}
    for path in place.store.glob(f"{function}-*/artifact.json"):
        record = json.loads(path.read_text())
        times[path.parent.name] = record["started"], record["started"] + record["seconds"]
    return times


@pytest.fixture(scope="module")
def halved(ray: Machine, beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tuning of four trials, two at a time, of which ASHA stops the worse half."""
    folder = tmp_path_factory.mktemp("tuned")
    place = tiny.place(folder, tree(beir, encoder, scheduler="asha", reduction_factor=2), trials=2)
    assert run_tuning(place) == folder / "runs" / "tiny" / "tiny-best.yaml"
    return place


def test_trials_that_are_behind_are_stopped(halved: Place) -> None:
    rows = trials(halved)
    # The baseline equals the first point of the grid, so that point is no trial of its own.
    assert [(trial["point"].get(WARM), trial["point"].get(GAME)) for trial in rows] == [
        (None, None),
        (1e-3, 2e-3),
        (1e-9, 1e-3),
        (1e-9, 2e-3),
    ]
    assert [trial["state"] for trial in rows] == ["done", "done", "stopped", "stopped"]
    assert [len(trial["measures"]) for trial in rows] == [2, 2, 1, 1]
    assert rows[0]["values"] == {WARM: 1e-3, GAME: 1e-3}


def test_shared_steps_run_once(halved: Place) -> None:
    """Every artifact was made by one trial, or before all trials; none was made twice."""
    rows = trials(halved)
    first = min(began for began, _ in records(halved, "train").values())
    before = [name for name, (_, ended) in records(halved).items() if ended <= first]
    assert {name.partition("-")[0] for name in before} >= {"ingest", "start", "tokenize", "mine"}
    assert sum(trial["steps"] for trial in rows) == len(records(halved)) - len(before)
    # Trials 0 and 1 started together with the same warm-up, and so did 2 and 3.
    assert len(records(halved, "train")) == 2 + 2 + 2  # warm retrievers; warm ranker and its round; two games
    assert {trial["steps"] for trial in rows[2:]} != {0}


def test_a_trials_measure_is_that_of_a_run_with_its_values(halved: Place) -> None:
    """`run --set` with the values of a finished trial has nothing left to do."""
    trial = trials(halved)[1]
    sets = [f"{key}={json.dumps(value)}" for key, value in trial["point"].items()]
    same = loading.read(halved.config, ["evaluate.split=dev", *sets], halved.runs)
    store = Store(halved.store)
    measured = [row.metrics for row in same.outcome.rows if row.name == "retriever 1"]
    record = store.record(measured[0])
    assert record is not None
    assert record["summary"]["measures"]["RR@10"] == trial["measures"][1]
    assert pending(measured, store) == []


def test_a_run_with_the_values_of_a_stopped_trial_does_what_is_left(halved: Place) -> None:
    trial = trials(halved)[2]
    sets = [f"{key}={json.dumps(value)}" for key, value in trial["point"].items()]
    same = loading.read(halved.config, ["evaluate.split=dev", *sets], halved.runs)
    systems = {row.name: row.metrics for row in same.outcome.rows}
    labels = {node.label for node in pending([systems["retriever 1"]], Store(halved.store))}
    assert labels == {
        "warm retriever queries (train)",
        "warm retriever ranking (train)",
        "warm ranker groups",
        "warm ranker",
        "ranker 1 groups",
        "ranker 1",
        "retriever 1 groups",
        "judged 1",
        "retriever 1",
        "retriever 1 vectors",
        "retriever 1 queries (dev)",
        "retriever 1 ranking (dev)",
        "retriever 1 measures",
    }
    assert not pending([systems["warm retriever"]], Store(halved.store))


def test_a_repeated_command_does_nothing(halved: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "resolve_machine", None)  # Ray is not even started
    before, done = records(halved), trials(halved)
    best = run_tuning(halved)
    assert (records(halved), trials(halved)) == (before, done)
    out, err = said()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "RR@10, dev split; 4 trials: 2 done, 2 stopped"
    assert lines[2].split() == [
        "trial",
        "warm.train.learning_rate",
        "game.train.learning_rate",
        "warm",
        "retriever",
        "retriever",
        "1",
    ]
    assert lines[3].endswith("  best")
    assert sum("the config as it is" in line for line in lines[2:7]) == 1
    assert lines[-2] == f"the report: {halved.runs / 'tiny' / 'tune.html'}"
    assert best.exists()


def test_the_best_config_runs_as_it_is(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "copy")
    best = place.runs / "tiny" / "tiny-best.yaml"
    numbers = [trial for trial in trials(place) if trial["state"] == "done"]
    winner = max(numbers, key=lambda trial: trial["measures"][-1])
    text = best.read_text()
    assert f"RR@10 {winner['measures'][-1]:.3f} of retriever 1" in text
    assert re.search(rf"\(trial {winner['number']}\): .*{GAME}={format_value(winner['values'][GAME])}\b", text)
    assert "--set evaluate.split=test\n" in text
    assert yaml.safe_load(text)["retriever"]["game"]["train"]["learning_rate"] == winner["values"][GAME]
    run = [
        "--store",
        str(place.store),
        "--runs",
        str(place.runs),
        "run",
        str(best),
        "--cluster",
        str(place.folder / "inline.yaml"),
    ]
    trained = records(place, "train")
    assert main(run) == 0  # what the measures did not need: BM25, the ranker over it
    assert set(records(place, "train")) == set(trained)
    rows = place.metrics("tiny-best")["rows"]
    value = next(row["value"] for row in rows if (row["system"], row["measure"]) == ("retriever 1", "RR@10"))
    assert value == pytest.approx(winner["measures"][-1])
    said()
    assert main(run) == 0
    assert "nothing to run" in said()[0]


def test_a_tuning_is_removed_with_its_trials(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "cleaned")
    assert place("clean", "--whole", "--dry-run") == 0
    assert said()[0].count("warm retriever\n") == 2  # one for each of its learning rates
    assert records(place)
    assert place("clean", "--whole") == 0
    assert records(place) == {}
    assert [trial["measures"] for trial in trials(place)] == [trial["measures"] for trial in trials(halved)]


def test_a_runs_folder_removes_what_its_trials_made_too(halved: Place, tmp_path: Path, said: Said) -> None:
    """Also trials of the config as it was before; and no other run keeps it for them any more."""
    place = halved.copy(tmp_path / "edited")
    words = ["--set", f"tune.space={{{WARM}: {{grid: [1.0e-3]}}}}", "--set", "tune.systems=[warm retriever]"]
    tuned = read_tuning(parser().parse_args(place.words("tune", *words)))
    table = tune._empty_table(dataclasses.replace(tuned, run=place.runs / "tiny"))
    table.resume()
    assert table.trials == []
    assert set(table.earlier) >= set(records(place))
    tune._add_fixed_trials(tuned, table)
    table.save()
    RunFolder(loading.read(place.config, [], place.runs), Store(place.store)).write_plan()
    folder = ["--store", str(place.store), "--runs", str(place.runs)]
    assert main([*folder, "show", str(place.runs / "tiny")]) == 0
    assert said()[0].startswith("RR@10, dev split; 1 trial: 1 waiting\n")
    assert main([*folder, "clean", str(place.runs / "tiny"), "--whole"]) == 0
    assert records(place) == {}
    assert place("show") == 0
    assert "of the config as it was then; `tune` begins anew:" in said()[0].splitlines()
    table.resume()
    assert table.artifacts == []


def test_what_another_tuning_stands_on_is_kept(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "two")
    shutil.copytree(place.runs / "tiny", place.runs / "other")
    kept = {name for trial in trials(place, "other") for name in trial["artifacts"]}
    assert place("clean", "--whole") == 0
    assert kept >= set(records(place)) > set()
    assert len(records(place)) == len(kept & set(records(halved)))


def test_a_trial_whose_measure_was_removed_runs_again(halved: Place, tmp_path: Path) -> None:
    """Its data may be others since."""
    place = halved.copy(tmp_path / "removed")
    tuned, store, before = read_tuning(parser().parse_args(place.words("tune"))), Store(place.store), trials(halved)
    table = tune._empty_table(tuned)
    table.resume()
    removed = tuned.measure_steps(tuned.experiment(table.trials[1].point))
    store.remove(removed[1][0])
    tune._take_measures(tuned, table, store)
    assert [trial.state for trial in table.trials] == ["done", "waiting", "stopped", "stopped"]
    assert [trial.measures for trial in table.trials] == [
        trial["measures"][: 1 if trial["number"] == 1 else None] for trial in before
    ]
    store.remove(removed[0][0])  # which trial 0 has too
    tune._take_measures(tuned, table, store)
    assert [(trial.state, len(trial.measures)) for trial in table.trials] == [
        ("waiting", 0),
        ("waiting", 0),
        ("stopped", 1),
        ("stopped", 1),
    ]


def test_a_tuning_with_a_mistake_in_its_section_is_removed_all_the_same(
    halved: Place, tmp_path: Path, said: Said
) -> None:
    place = halved.copy(tmp_path / "mistaken")
    assert place("clean", "--whole", "--dry-run", "--set", "tune.search=optuna") == 0
    assert place("clean", "--whole", "--dry-run", "--set", "tune.trials=nothing") == 0


def test_the_page_shows_the_measure_against_each_key(halved: Place) -> None:
    page = (halved.runs / "tiny" / "tune.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("<circle") == 8
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")  # a name, not a place
    assert "retriever.warm.train.learning_rate" in page
    assert "2 done, 2 stopped" in page
    assert f"<code>run {halved.runs / 'tiny' / 'tiny-best.yaml'}</code>" in page


def test_keys_that_no_training_uses_train_nothing(halved: Place, tmp_path: Path, said: Said) -> None:
    """Such as the ranker's depth: all trials share the models."""
    place = halved.copy(tmp_path / "copy")
    config = yaml.safe_load(place.config.read_text())
    config["tune"] = {
        "measure": "RR@10",
        "systems": ["ranker over retriever 1"],
        "space": {"rerank.depth": {"grid": [2, 5, 10]}},
    }
    tiny.write(place.config, config)
    tiny.write(place.folder / "inline.yaml", {**tiny.INLINE, "trials": 1})
    trained = records(place, "train")
    run_tuning(place)
    assert records(place, "train") == trained
    assert [(trial["steps"], trial["state"]) for trial in trials(place)] == [(2, "done")] * 3  # rerank, evaluate
    assert "first what all trials have in common" not in said()[1]


def test_a_trial_that_fails_does_not_end_the_others(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "copy")
    words = ["--set", f"tune.space.{WARM}.grid=[1.0e-3, 1.0e+38]", "--set", "tune.systems=[warm retriever]"]
    words += ["--set", f"tune.space={{{WARM}: {{grid: [1.0e-3, 1.0e+38]}}}}"]
    run_tuning(place, *words)
    out, err = said()
    assert re.search(r"^trial 1: failed: step 'warm retriever' failed: .*  \(", err, re.M)
    assert out.startswith("RR@10, dev split; 2 trials: 1 done, 1 failed\n")
    assert re.search(
        r"^  trial 1 failed: step 'warm retriever' failed: update 2: .* is nan. Lower the learning rate", out, re.M
    )


def test_where_every_trial_fails_the_table_says_why(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "copy")
    words = ["--set", f"{WARM}=1.0e+38", "--set", "tune.systems=[warm retriever]"]
    words += ["--set", f"tune.space={{{WARM}: {{grid: [1.0e+38, 2.0e+38]}}}}"]
    with pytest.raises(StepFailed, match=r"^no trial is done: step 'warm retriever' failed: update 2: .* is nan"):
        run_tuning(place, *words)
    out = said()[0]
    assert out.startswith("RR@10, dev split; 2 trials: 2 failed\n")
    assert out.count("failed: step 'warm retriever' failed: update 2") == 2


OPTUNA = {"search": "optuna", "space": {GAME: {"loguniform": [1e-5, 1e-2]}}, "trials": 3}


def test_a_split_that_is_not_there_is_told_before_the_shared_steps(
    ray: Machine, beir: Path, encoder: Path, tmp_path: Path
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, split="val"), trials=2)
    with pytest.raises(UserError, match="split 'val' has no query with a relevant document; splits that have some"):
        run_tuning(place)
    assert {name.partition("-")[0] for name in records(place)} == {"ingest"}


@pytest.mark.kill
@pytest.mark.parametrize(
    ("options", "states", "same"),
    [
        pytest.param({}, ["done"] * 4, 2, id="grid"),
        pytest.param(
            {"scheduler": "asha", "reduction_factor": 2}, ["done", "done", "stopped", "stopped"], 4, id="asha"
        ),
        pytest.param(OPTUNA, ["done"] * 4, 1, id="optuna"),
    ],
)
def test_a_killed_tuning_resumes(
    beir: Path, encoder: Path, halved: Place, tmp_path: Path, options: dict[str, Any], states: list[str], same: int
) -> None:
    """Killed after a first trial is done: that one does not run again, and the outcome is that of a tuning that was not
    killed. Only Optuna draws other points, with another seed and the finished trials in its study."""
    place = tiny.place(tmp_path, tree(beir, encoder, **options), trials=2)
    command = [sys.executable, "-m", "workflows", *place.words("tune")]
    path = place.runs / "tiny" / "trials.json"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as driver:
        while not (path.exists() and any(trial["state"] == "done" for trial in trials(place))):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.kill()
    drawn = [trial["point"] for trial in trials(place)]
    done = {trial["number"]: trial for trial in trials(place) if trial["state"] == "done"}
    artifacts = records(place)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    for number, trial in done.items():
        assert trials(place)[number] == trial
        assert not re.search(rf"^trial {number}: ", again.stderr, re.M)
    now = records(place)
    assert {name: now[name] for name in artifacts} == artifacts
    rows = trials(place)
    assert [trial["point"] for trial in rows[: len(drawn)]] == drawn
    assert [trial["state"] for trial in rows] == states
    for trial, expected in zip(rows[:same], trials(halved)[:same], strict=True):
        assert (trial["point"], trial["measures"]) == (expected["point"], expected["measures"])


@pytest.mark.kill
def test_ctrl_c_ends_a_tuning_in_a_line(beir: Path, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder), trials=2)
    command = [sys.executable, "-m", "workflows", *place.words("tune")]
    path = place.runs / "tiny" / "trials.json"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
        while not (path.exists() and any(trial["state"] == "running" for trial in trials(place))):
            assert driver.poll() is None
            time.sleep(0.02)
        assert place("clean", "--whole") == 2  # its trials need what they share
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate()
    assert driver.returncode == 130
    assert err.splitlines()[-1].startswith("Interrupted. ")
    assert {"config.yaml", "plan.txt", "trials.json"} <= {path.name for path in (place.runs / "tiny").iterdir()}
    assert "Traceback" not in err


@pytest.mark.slow
def test_optuna_draws_while_trials_run_and_resumes(ray: Machine, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Through Ray Tune; a repeated command with more trials keeps those that are done and draws others."""
    space = {WARM: {"loguniform": [1e-5, 1e-2]}}
    config = tree(beir, encoder, search="optuna", space=space, systems=["warm retriever"], trials=2)
    place = tiny.place(tmp_path, config, trials=2)
    run_tuning(place)
    first = trials(place)
    assert [trial["state"] for trial in first] == ["done"] * 3
    drawn = [trial["point"][WARM] for trial in first[1:]]
    assert first[0]["point"] == {}
    assert len({1e-3, *drawn}) == 3
    assert all(1e-5 <= rate <= 1e-2 for rate in drawn)
    trained = records(place, "train")
    assert len(trained) == 3
    config["tune"]["trials"] = 3
    tiny.write(place.config, config)
    run_tuning(place)
    assert trials(place)[:3] == first
    assert trials(place)[3]["point"][WARM] not in drawn
    assert trained.items() <= records(place, "train").items()
    assert len(records(place, "train")) == 4
