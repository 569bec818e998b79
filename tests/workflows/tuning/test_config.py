"""The section `tune`: what is refused, in one line and before anything runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from sparring.components.config import UserError
from sparring.workflows.command_line import main, parser
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.experiments import loading
from sparring.workflows.running.runner import run_steps
from sparring.workflows.running.tracking import Tracker
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from sparring.workflows.tuning import tune
from sparring.workflows.tuning.config import read_tuning
from sparring.workflows.tuning.first_trials import config_values
from sparring.workflows.tuning.monitor import Monitor
from sparring.workflows.tuning.search_space import points
from sparring.workflows.tuning.trials import Trial
from tests.support import sources, tiny
from tests.support.tiny import Said
from tests.support.tuning import GAME, WARM, tree

K1 = {"bm25.search.k1": {"grid": [0.9, 1.2]}}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"measure": "RR@11"}, r"tune\.measure: RR@11 is not measured; accepted: RR@10, Success@5, R@100"),
        ({"systems": ["retriever 2"]}, r"tune\.systems: there is no 'retriever 2'; accepted: 'BM25', 'start model', "),
        ({"split": "test"}, r"tune\.split: 'test' is for the results alone; .*accepted: another split, such as dev"),
        (
            {"split": "train"},
            r"tune\.split: systems learn from 'train'; accepted: another split, such as dev, or one .*",
        ),
        ({"space": {WARM: {"loguniform": [0, 1]}}}, r"tune: space\.retriever\.warm\.train\.learning_rate: loguniform:"),
        (
            {"space": {"retriever.warm.train.losses.3.weight": {"uniform": [0, 1]}}},
            r"'3' is not a position in a list of 1",
        ),
        (
            {"space": {"rounds": {"uniform": [1, 4]}}},
            r"tune\.space\.rounds: it may draw 1\.95: .*rounds: got 1\.95; accepted: a whole number",
        ),
        (
            {"space": {"evaluate.split": {"grid": ["test", "dev"]}}},
            r"tune\.space\.evaluate\.split: evaluate\.split: trials are compared on the same data, by the same "
            r"measure; accepted: keys of models, trainings and retrieval",
        ),
        (
            {"space": {"size": {"grid": [2], "sets": ["rounds", "data.sample.dev"]}}},
            r"tune\.space\.size: data\.sample\.dev: trials are compared .*; accepted: keys of models, .*",
        ),
        ({"space": {"answers.depth": {"grid": [1, 2]}}}, r"tune\.space\.answers\.depth: answers\.depth: trials are .*"),
        ({"space": {"scale": {"grid": [None, "small"]}}}, r"tune\.space\.scale: scale: trials are compared .*"),
        ({"space": {"small": {"grid": [{}]}}}, r"tune\.space\.small: small: trials are compared .*"),
        ({"space": {"data.path": {"choice": ["one", "two"]}}}, r"tune\.space\.data\.path: data\.path: trials are .*"),
        (
            {"space": {"rate": {"grid": [1e-3], "sets": [WARM]}, WARM: {"grid": [1e-2]}}},
            r"tune\.space\.retriever\.warm\.train\.learning_rate: retriever\.warm\.train\.learning_rate: "
            r"tune\.space\.rate sets retriever\.warm\.train\.learning_rate; accepted: each key once",
        ),
        (
            {"space": {WARM: {"grid": [1e-2]}, "retriever.warm": {"choice": [{}]}}},
            r"retriever\.warm: tune\.space\.retriever\.warm\.train\.learning_rate sets .*; accepted: each key once",
        ),
        ({"space": {GAME: {"grid": [1e-3]}}, "search": "optuna"}, r"tune\.space\..*: grid: Optuna draws; accepted: "),
    ],
)
def test_a_mistake_is_one_line(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, options: dict[str, Any], says: str
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, **options))
    assert place("tune") == 2
    out, err = said()
    assert out == ""
    assert re.fullmatch(rf"error: .*tiny\.yaml.*{says}.*\n|error: --set .*{says}\n", err), err
    assert place("plan") == 2
    assert said()[1] == err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


@pytest.mark.parametrize(
    ("options", "key", "code"),
    [
        ({"measure": "MRR11"}, "measure", "unknown-measure"),
        ({"systems": []}, "systems", "too-short"),
        ({"systems": ["BM25", "BM25"]}, "systems", "duplicate"),
        ({"trials": 0}, "trials", "too-small"),
        ({"search": "grid"}, "search", "unknown-value"),
        ({"reduction_factor": 1}, "reduction_factor", "too-small"),
        ({"spaces": {}}, "spaces", "unknown-key"),
        ({"space": {}}, "space", "too-short"),
        ({"space": {WARM: {"uniform": [-1, 1]}}}, "retriever.warm.train.learning_rate", "too-small"),
        ({"space": {"retriever.warm.train.rate": {"uniform": [0, 1]}}}, "retriever.warm.train.rate", "unknown-key"),
        ({"space": {"heat": {"uniform": [0, 1]}}}, "heat", "unknown-key"),
        ({"space": {"rounds": {"choice": ["two"]}}}, "rounds", "wrong-type"),
    ],
)
def test_a_wrong_key_or_value_is_refused(
    beir: Path, encoder: Path, tmp_path: Path, mistakes: list[UserError], options: dict[str, Any], key: str, code: str
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, **options))
    assert place("tune") == 2
    assert [(mistake.key, mistake.code) for mistake in mistakes] == [(key, code)]


MODEL = "retriever.model.model"


@pytest.mark.parametrize(
    "options",
    [{"space": {MODEL: {"grid": ["./no/such"]}}}, {"space": {MODEL: {"choice": ["./no/such"]}}, "search": "optuna"}],
)
def test_a_model_that_only_a_trial_has_must_be_there(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, options: dict[str, Any]
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, **options))
    assert place("tune") == 2
    message = "model: ./no/such: there is no such directory"
    assert said() == ("", f"error: start retriever: {message}\n")
    assert place("plan") == 2
    assert message in said()[1]
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_a_file_that_only_a_trial_has_must_be_as_it_was(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    copy = shutil.copytree(encoder, tmp_path / "other")
    options = {"space": {MODEL: {"grid": [str(copy)]}}, "systems": ["start model"]}
    place = tiny.place(tmp_path, tree(beir, encoder, **options))
    tuned = read_tuning(parser().parse_args(place.words("tune")))
    nodes = graph(step for seeds in tuned.measure_steps(tuned.experiment({MODEL: str(copy)})) for step in seeds)
    run_steps(
        [node for node in nodes if node.label == "start retriever"],
        Store(place.store),
        resolve_machine(Cluster(**tiny.INLINE)),
    )
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    said()
    assert place("tune") == 2
    err = said()[1]
    assert re.fullmatch(r"error: .*other/config\.json: changed since the step 'start retriever' read it .*\n", err)
    assert place("plan") == 0
    assert f"`tune` stops here: {err.removeprefix('error: ')}" in said()[0]


def test_what_learns_nothing_may_be_measured_on_train(beir: Path, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, systems=["BM25"], split="train", space=K1))
    assert read_tuning(parser().parse_args(place.words("tune"))).tuning.split == "train"


def test_the_last_system_counts_where_none_is_named(beir: Path, encoder: Path, tmp_path: Path) -> None:
    config = tree(beir, encoder)
    del config["tune"]["systems"]
    place = tiny.place(tmp_path, config)
    tuned = read_tuning(parser().parse_args(place.words("tune")))
    rows = tuned.experiment({}).outcome.rows
    assert tuned.tuning.systems == tuned.tree["tune"]["systems"] == [rows[-1].name]
    (measured,) = tuned.measure_steps(tuned.experiment({}))
    assert measured == [rows[-1].metrics]


def test_plan_says_what_is_tried(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    config = tree(beir, encoder, space={GAME: {"grid": [1e-3, 2e-3]}, WARM: {"uniform": [1e-4, 1e-3]}}, trials=3)
    place = tiny.place(tmp_path, config)
    assert place("plan") == 0
    line = said()[0].splitlines()[-1]
    assert line.startswith("this is the plan of `run`; `python -m workflows tune ")
    assert f" tries 6 points of {GAME}, {WARM}, beside the config as it is, by RR@10 of " in line
    assert place("plan", "--estimate", "--cluster", str(place.folder / "inline.yaml")) == 0
    line = said()[0].splitlines()[-1]
    tuned = read_tuning(parser().parse_args(place.words("tune")))
    tried = [tuned.experiment(point) for point in [{}, *points(tuned.tuning.space, 3, tuned.tuning.seed)]]
    steps = graph(step for trial in tried for seeds in tuned.measure_steps(trial) for step in seeds)
    assert f"`: 7 trials of {len(steps)} steps, those that they share counted once; " in line


def test_a_point_that_is_the_config_as_it_is_is_no_other(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder))  # its grid has both learning rates of the config
    assert place("plan") == 0
    assert f" tries 3 points of {WARM}, {GAME}, beside the config as it is, by " in said()[0]
    assert place("plan", "--estimate", "--cluster", str(place.folder / "inline.yaml")) == 0
    assert "`: 4 trials of " in said()[0]


def test_trials_of_adapt_have_the_splits_of_its_run(encoder: Path, tmp_path: Path) -> None:
    """What the run measures on is neither trained on nor chosen by in any trial."""
    folder = sources.beir(tmp_path / "own")
    asked_for = [json.dumps({"_id": f"q{n}", "text": f"{n}?"}) for n in range(90)]
    sources.write(folder / "queries.jsonl", *asked_for)
    sources.write(folder / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", *(f"q{n}\td1\t1" for n in range(90)))
    (folder / "qrels" / "test.tsv").unlink()
    config = tiny.adapt(folder, encoder)
    config["tune"] = {
        "measure": "RR@10",
        "systems": ["warm retriever"],
        "space": {"train.warm.learning_rate": {"grid": [1e-4]}},
    }
    place = tiny.place(tmp_path / "place", config)
    tuned = read_tuning(parser().parse_args(place.words("tune")))
    run = loading.read(place.config, [], place.runs).config
    assert set(run.data.hold_out) == {"test", "dev"}
    trial = tuned.experiment({"train.warm.learning_rate": 1e-4}).config
    assert (trial.data.hold_out, trial.evaluate.split) == (run.data.hold_out, "dev")
    again = tiny.write(tmp_path / "best.yaml", trial.model_dump(mode="json"))
    assert loading.read(again, ["evaluate.split=test"], place.runs).config.data.hold_out == run.data.hold_out


def test_the_best_config_has_its_tunings_scale(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """So that what its training starts from, another experiment, is as small as in the trial."""
    start = tiny.write(tmp_path / "start.yaml", {**tiny.dpr(beir, encoder), "small": {"train.updates": 2}})
    section = {"measure": "RR@10", "space": {"train.learning_rate": {"grid": [1e-2]}}}
    config = {**tiny.dpr(beir, encoder), "start_from": str(start), "small": {"train.batch": 2}, "tune": section}
    place = tiny.place(tmp_path / "place", config)
    tuned = read_tuning(parser().parse_args([*place.words("tune"), "--set", "scale=small"]))
    point = {"train.learning_rate": 1e-2}
    table = tune._empty_table(tuned)
    table.trials.append(Trial(0, point, point, "done", [0.5]))
    best = loading.read(tune._show(tuned, table, Store(place.store), str), [], place.runs)
    assert best.scale == "small"
    assert best.outcome.results.fingerprint == tuned.experiment(point).outcome.results.fingerprint


def test_an_experiment_without_the_section_is_not_tuned(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    assert place("tune") == 2
    assert re.fullmatch(r"error: .*tiny\.yaml: tune: missing; accepted: .*\n", said()[1])
    assert place("tune", "--set", "tune=3") == 2
    assert re.fullmatch(r"error: .*tiny\.yaml: tune: expected keys and values, got 3\n", said()[1])


def test_a_comparison_is_not_tuned(said: Said) -> None:
    assignment = "tune={measure: RR@10, systems: [a], space: {k: {grid: [1]}}}"
    assert main(["tune", "configs/ar2/ablations.yaml", "--set", assignment]) == 2
    assert re.fullmatch(r"error: .*: compare has no numbers of its own; tune one of its experiments\n", said()[1])


def test_optuna_must_be_installed(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    space = {GAME: {"uniform": [1e-3, 2e-3]}}
    place = tiny.place(tmp_path, tree(beir, encoder, search="optuna", space=space))
    assert place("tune") == 2
    assert re.fullmatch(r"error: .*tune\.search: optuna is not installed; accepted: random, or .*\n", said()[1])


def test_a_name_has_the_configs_value_where_all_its_keys_have(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Else the point with the first key's value would pass for the config as it is, and not be tried."""
    space = {
        "rate": {"grid": [1e-3], "sets": [WARM, GAME]},
        "size": {"grid": [2], "sets": ["retriever.warm.train.batch"]},
    }
    place = tiny.place(tmp_path, tree(beir, encoder, space=space))
    tuned = read_tuning(parser().parse_args([*place.words("tune"), "--set", f"{WARM}=1e-3", "--set", f"{GAME}=2e-3"]))
    assert config_values(tuned).keys() == {"size"}
    alike = read_tuning(parser().parse_args([*place.words("tune"), "--set", f"{WARM}=1e-3", "--set", f"{GAME}=1e-3"]))
    assert config_values(alike)["rate"] == 1e-3


def test_a_drawn_point_that_is_not_accepted_is_announced_like_others(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    """The trial says why it failed; its values would have ended the command here."""
    place = tiny.place(tmp_path, tree(beir, encoder))
    tuned = read_tuning(parser().parse_args(place.words("tune")))
    trial = Trial(0, {GAME: -1.0}, {GAME: -1.0}, state="failed", reason="got -1.0")
    table = tune._empty_table(tuned)
    table.trials.append(trial)
    monitor = Monitor(tuned, table, Store(place.store), MagicMock(spec=Tracker))
    monitor.announce(trial)
    assert said()[1].startswith("trial 0: failed: got -1.0")
    assert monitor._steps(trial) == []
