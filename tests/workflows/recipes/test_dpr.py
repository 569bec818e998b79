"""A retriever trained in two stages, as PAIR is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.config import UserError
from tests.support import tiny
from tests.support.trainings import lines, weights
from workflows.stages import experiments
from workflows.store.dag import Step, graph

PAIR = "components.losses.same_tower.pair"


@pytest.fixture
def tree(beir: Path, encoder: Path) -> dict[str, Any]:
    small = {**tiny.dpr(beir, encoder), "negatives": {"negatives": 0}}
    return {**small, "train": tiny.training(PAIR, over="batch"), "second_stage": tiny.training(over="batch", updates=2)}


def test_where_nothing_is_selected_what_was_trained_leads(tmp_path: Path, tree: dict[str, Any]) -> None:
    """As in the run that ends a tuning, which measures the split that has chosen the trial."""
    outcome = experiments.read(tiny.write(tmp_path / "tiny.yaml", tree), ["evaluate.select=null"], tmp_path).outcome
    assert outcome.results.inputs["comparisons"][0] == {"system": "retriever", "baseline": "start model"}


def test_the_second_stage_begins_where_the_first_ends_and_is_what_is_measured(
    tmp_path: Path, tree: dict[str, Any]
) -> None:
    def steps(one: dict[str, Any]) -> dict[str, Step]:
        outcome = experiments.read(tiny.write(tmp_path / "tiny.yaml", one), ["seeds=[1, 2]"], tmp_path).outcome
        return {node.label: node for node in graph([outcome.results])}

    two, alone = steps(tree), steps({**tree, "second_stage": None})
    for seed in (1, 2):
        first, second = two[f"retriever (seed {seed})"], two[f"retriever, second stage (seed {seed})"]
        assert second.inputs["start"] is first
        assert two[f"retriever (seed {seed}) vectors"].inputs["retriever"] is second
        assert first.fingerprint == alone[f"retriever (seed {seed})"].fingerprint
        assert second.inputs["rows"].fingerprint != first.inputs["rows"].fingerprint


def test_the_second_stage_learns_with_its_own_loss(tmp_path: Path, tree: dict[str, Any]) -> None:
    place = tiny.place(tmp_path, tree)
    assert place("run", "--until", "retriever, second stage") == 0
    first, second = place.artifact("retriever"), place.artifact("retriever, second stage")
    assert any((weights(first)[name] != value).any() for name, value in weights(second).items())
    assert [list(lines(stage)[0])[1] for stage in (first, second)] == ["pair (batch)", "cross_entropy (batch)"]
    assert len(lines(second)) == 2


def test_a_second_stage_wants_a_first(tmp_path: Path, tree: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="second_stage: a second stage wants a first: `train`"):
        experiments.read(tiny.write(tmp_path / "tiny.yaml", {**tree, "train": None}), [], tmp_path)
