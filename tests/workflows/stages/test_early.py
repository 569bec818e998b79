"""Early outcomes: which rows each has, and what a run does first."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.experiments import loading
from sparring.workflows.recipes.adapt import budget
from sparring.workflows.store.dag import graph
from tests.support import recipes, tiny


@pytest.fixture
def experiment(beir: Path, encoder: Path, tmp_path: Path) -> loading.Experiment:
    """The tiny adaptation. Nothing is run."""
    return _read(tmp_path, tiny.adapt(beir, encoder))


def _read(folder: Path, tree: dict[str, Any]) -> loading.Experiment:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), [], folder / "runs")


def test_each_training_that_completes_a_row_has_an_early_outcome(experiment: loading.Experiment) -> None:
    early, whole = experiment.outcome.early, {row.name for row in experiment.outcome.rows}
    moments = [outcome.interim.moment for outcome in early if outcome.interim is not None]
    assert moments == ["before training", "after warm retriever", "after warm ranker"]
    for outcome in early:
        names = {row.name for row in outcome.rows}
        assert outcome.interim is not None
        assert outcome.interim.missing.keys() == whole - names
        assert {entry["system"] for entry in outcome.results.inputs["selection"].inputs["systems"]} == names
    assert not any(row.trained for row in early[0].rows)
    assert {"BM25", "start model"} <= {row.name for row in early[0].rows}


@pytest.mark.parametrize("seeds", [[0], [1, 2, 3]])
def test_an_early_outcome_needs_only_what_is_made_before_the_next_training(
    seeds: list[int], beir: Path, encoder: Path, tmp_path: Path
) -> None:
    """The first needs no training, and the others those of the present seed and of the seeds before it."""
    experiment = _read(tmp_path, {**tiny.adapt(beir, encoder), "seeds": seeds})
    learnt = [
        [node.label for node in graph([outcome.results]) if node.description.models == "training"]
        for outcome in experiment.outcome.early
    ]
    assert learnt[0] == []
    assert all(set(before) < set(after) for before, after in pairwise(learnt))
    steps = graph(experiment.wanted)
    place = {node.fingerprint: number for number, node in enumerate(steps)}
    ends = [place[outcome.results.fingerprint] for outcome in experiment.outcome.early]
    trainings = [place[node.fingerprint] for node in steps if node.description.models == "training"]
    for end, labels in zip(ends, learnt, strict=True):
        assert sum(training < end for training in trainings) == len(labels)


def test_early_outcomes_leave_the_whole_result_as_it_is(experiment: loading.Experiment) -> None:
    alone = {node.fingerprint for node in graph([experiment.outcome.results])}
    additional = [node for node in graph(experiment.wanted) if node.fingerprint not in alone]
    assert {node.function.__name__ for node in additional} == {"select", "results"}


def test_without_training_there_is_no_early_outcome(beir: Path, encoder: Path, tmp_path: Path) -> None:
    assert _read(tmp_path, {**tiny.adapt(beir, encoder), "train": False}).outcome.early == []


def test_experiments_that_another_one_names_have_no_early_outcome_and_all_their_time(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no folder that could keep the values that give way."""

    def refuse(*_: Any) -> float:
        raise AssertionError("the time of a fold was estimated")

    monkeypatch.setattr(budget, "_seconds", refuse)
    tree = recipes.folds(tmp_path, encoder)
    tiny.write(tmp_path / "inner.yaml", tiny.adapt(tmp_path / "toy", encoder))
    assert _read(tmp_path, tree).outcome.early == ()
