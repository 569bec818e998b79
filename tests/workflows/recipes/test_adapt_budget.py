"""Fitting a run of `adapt` into its hours."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from sparring.components.yaml_files import yaml_text
from sparring.workflows.experiments import loading
from sparring.workflows.recipes.adapt import Config, budget
from sparring.workflows.recipes.adapt.config import Trainings
from sparring.workflows.tuning.config import read_tuning
from tests.support import tiny
from tests.support.errors import refused

COUNTS = {"train": 5_400, "dev": 600, "test": 500}


@pytest.fixture
def tree(beir: Path, encoder: Path) -> dict[str, Any]:
    """A config that leaves all numbers open."""
    return {"recipe": "adapt", "data": {"format": "beir", "path": str(beir)}, "model": str(encoder)}


def seconds(config: Config) -> float:
    """Time a run by the pairs that rankers read and by the updates."""
    assert isinstance(config.train, Trainings)
    updates = sum(getattr(config.train, name).updates for name in budget.PARTS)
    pairs = min(config.rerank.queries or 600, 600) * config.rerank.depth
    return float(pairs + 10 * updates) * (config.pair_tokens or 0) / 100


def fitted(tree: dict[str, Any], limit: float) -> tuple[Config, dict[str, Any]]:
    """Fit a config whose open values are those of a collection with 5,400 training queries."""
    written = Config(**tree)
    assert isinstance(written.train, Trainings)
    updates = {name: getattr(written.train, name).updates or 600 for name in budget.PARTS}
    parts = {name: getattr(written.train, name).model_copy(update={"updates": updates[name]}) for name in budget.PARTS}
    lengths = {"query_tokens": 24, "document_tokens": 256}
    config = written.model_copy(
        update={
            "train": written.train.model_copy(update=parts),
            "model": written.model.model_copy(update=lengths),
            "pair_tokens": written.pair_tokens or 280,
        }
    )
    config, changes = budget.fit(config, budget.concessions(written, COUNTS), seconds, limit)
    return config, {change.key: change.value for change in changes}


def test_nothing_gives_way_in_enough_time(tree: dict[str, Any]) -> None:
    assert fitted(tree, 1e9)[1] == {}


def test_queries_give_way_first_and_no_more_than_is_needed(tree: dict[str, Any]) -> None:
    whole = seconds(fitted(tree, 1e9)[0])
    config, changes = fitted(tree, whole - 1)
    assert changes == {"rerank.queries": 500}
    assert seconds(config) <= whole - 1
    saved = 1_500 * 2.8
    assert fitted(tree, whole - saved)[1] == {"rerank.queries": 300}


def test_what_costs_quality_gives_way_later(tree: dict[str, Any]) -> None:
    config, changes = fitted(tree, 34_000)
    assert changes == {"rerank.queries": 300, **{f"train.{name}.updates": 300 for name in budget.PARTS}}
    assert config.model.document_tokens == 256
    config, changes = fitted(tree, 26_000)
    assert (changes["model.document_tokens"], changes["pair_tokens"]) == (192, 216)
    assert seconds(config) <= 26_000


def test_time_that_a_large_step_leaves_is_used(tree: dict[str, Any]) -> None:
    """Trainings of 400 updates do not fit beside a sample of 300 queries. Those of 300 do, even beside one of 500."""
    config, changes = fitted(tree, 40_600)
    assert changes == {"rerank.queries": 500, **{f"train.{name}.updates": 300 for name in budget.PARTS}}
    assert seconds(config) <= 40_600


def test_all_that_is_open_gives_way_if_the_time_is_too_short(tree: dict[str, Any]) -> None:
    config, changes = fitted(tree, 1)
    updates = {f"train.{name}.updates": 100 for name in budget.PARTS}
    lengths = {"model.document_tokens": 64, "pair_tokens": 88}
    assert changes == {"rerank.queries": 200, "rerank.depth": 5, **updates, **lengths}
    assert seconds(config) > 1


def test_what_the_user_set_stays(tree: dict[str, Any]) -> None:
    tree |= {"rerank": {"depth": 20}, "train": {"ranker": {"updates": 500}, "warm": {"epochs": 2}}, "pair_tokens": 90}
    tree["model"] = {"model": tree["model"], "document_tokens": 200}
    config, changes = fitted(tree, 1)
    assert changes == {"train.game.updates": 100}
    assert (config.rerank.depth, config.rerank.queries, config.pair_tokens) == (20, None, 90)


def test_a_sample_of_many_queries_is_measured(tree: dict[str, Any]) -> None:
    written = Config(**tree)
    (first, *_) = budget.concessions(written, {**COUNTS, "test": 10_000})
    concession = first(written)
    assert concession is not None
    assert concession.options == [{"data.sample": {"test": 1_000}}]
    tree["data"] = {**tree["data"], "sample": {"train": 20}}
    set_by_user = Config(**tree)
    assert budget.concessions(set_by_user, {**COUNTS, "test": 10_000})[0](set_by_user) is None


def test_a_repeated_command_keeps_what_gave_way(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busier, or without the data, too."""
    monkeypatch.setattr(budget, "_seconds", lambda clock, config: 1e5 if config.pair_tokens > 20 else 1e3)
    path = tiny.write(tmp_path / "own.yaml", {**tree, "train": {"warm": {"updates": 150}}})
    first = loading.read(path, [], tmp_path / "runs")
    texts = {default.key: default.reason for default in first.defaults}
    assert "set `budget: {hours: NUMBER}`" in texts["budget.hours"]
    monkeypatch.setattr(budget, "_seconds", lambda clock, config: float(config.rerank.queries or 1e6))
    slower = loading.read(path, [], tmp_path / "runs")
    first.run.mkdir(parents=True)
    (first.run / "config.yaml").write_text(yaml_text(first.tree))
    assert loading.read(path, [], tmp_path / "runs").config == first.config
    assert loading.read(first.run, [], tmp_path / "runs").config == first.config
    assert slower.config.shape != first.config.shape


def test_hours_can_be_lifted(tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_seconds", lambda clock, config: 1e9)
    path = tiny.write(tmp_path / "own.yaml", tree)
    for value in ("none", "null"):
        experiment = loading.read(path, [f"budget.hours={value}"], tmp_path / "runs")
        assert "budget.hours" not in {default.key for default in experiment.defaults}
        assert experiment.config.shape is None
    with refused("budget.hours", "too-small"):
        loading.read(path, ["budget.hours=0"], tmp_path / "runs")


def test_trials_have_what_gave_way_to_the_run(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a trial's own time is."""
    monkeypatch.setattr(budget, "_seconds", lambda clock, config: float(config.rerank.depth * 1e3))
    tune = {
        "space": {"train.warm.learning_rate": {"choice": [1e-5, 1e-4]}},
        "split": "dev",
        "trials": 2,
        "measure": "RR@10",
    }
    path = tiny.write(tmp_path / "own.yaml", {**tree, "tune": tune})
    arguments = argparse.Namespace(config=path, assignments=[], runs=tmp_path / "runs")
    tuned = read_tuning(arguments, to_run=False)
    monkeypatch.setattr(budget, "_seconds", lambda clock, config: 1e9)
    trial = tuned.experiment({"train.warm.learning_rate": 1e-5}).config
    assert trial.rerank.depth == 5
    assert trial.rerank.queries is None
    assert trial.shape is None
