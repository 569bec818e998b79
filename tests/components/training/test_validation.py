"""Validation: what is measured while a model is trained, which one is kept, and that looking changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.components.objectives.coder import _divergence
from sparring.components.training import loop
from sparring.components.training.objective import best_rank
from tests.support.trainings import lines, weights


def test_validation_keeps_the_best_and_stops_when_it_waited_long_enough(run: Any, tmp_path: Path) -> None:
    """The measure is made to rise until update 4 and to fall then."""
    values = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    real = loop.validate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "validate", lambda dev, config, **rest: {**real(dev, config, **rest), "RR": next(values)})
        summary = run("a", updates=20, schedule_updates=20, dev=True, validate_on_dev={"every": 2, "patience": 2})
    assert summary["updates"] == 8
    assert summary["best"] == {"value": pytest.approx(0.5), "update": 4}
    run("b", updates=4, schedule_updates=20)
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [line["dev RR"] for line in lines(tmp_path / "a") if "dev RR" in line] == pytest.approx([0.1, 0.5, 0.4, 0.3])


def test_validation_measures_each_querys_own_candidates(run: Any, tmp_path: Path) -> None:
    run("a", updates=2, dev=True, validate_on_dev={"every": 1, "measure": "accuracy"}, learning_rate=1e-12)
    run("b", updates=2, dev=True, validate_on_dev={"every": 2}, learning_rate=1e-12)
    accuracy = [line["dev accuracy"] for line in lines(tmp_path / "a") if "dev accuracy" in line]
    assert len(accuracy) == 2
    assert accuracy[0] == accuracy[1]
    assert accuracy[0] * 6 == pytest.approx(round(accuracy[0] * 6))  # six queries, each right or wrong
    (ranks,) = (line["dev RR"] for line in lines(tmp_path / "b") if "dev RR" in line)
    assert accuracy[0] <= ranks <= 1


def test_the_loss_is_validated_as_it_is_at_that_update(run: Any, tmp_path: Path) -> None:
    """A temperature that warms up was the first one at every look."""
    options: dict[str, Any] = {"dev": True, "validate_on_dev": {"every": 1, "measure": "loss"}, "learning_rate": 1e-12}
    for name, warmup in {"warmed": 2, "at once": 0}.items():
        released_options = {"temperature": 0.05, "warmup": warmup, "query_query": False, "document_document": False}
        released = {"function": "components.losses.simlm.released", "over": "batch", "options": released_options}
        run(name, updates=4, losses=[released], **options)
    warmed, plain = (
        [line["dev loss"] for line in lines(tmp_path / name) if "dev loss" in line] for name in ("warmed", "at once")
    )
    assert warmed[0] != pytest.approx(plain[0])
    assert warmed[2:] == pytest.approx(plain[2:])


def test_validating_does_not_change_the_training(run: Any, tmp_path: Path) -> None:
    run("a", updates=4)
    run("b", updates=4, dev=True, validate_on_dev={"every": 1, "measure": "accuracy"})
    a, b = (load_file(tmp_path / place / "state/optimizer.safetensors") for place in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_model_that_training_makes_no_better_is_kept_as_it_was(run: Any, tmp_path: Path, retriever: Path) -> None:
    """The look before the first update is the best of all: the values that are seen are made to fall."""
    values = iter([0.9, 0.5, 0.4])
    real = loop.validate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "validate", lambda dev, config, **rest: {**real(dev, config, **rest), "RR": next(values)})
        summary = run("a", updates=4, dev=True, validate_on_dev={"every": 2, "from_start": True})
    assert summary["best"] == {"value": 0.9, "update": 0}
    assert [line["dev RR"] for line in lines(tmp_path / "a") if "dev RR" in line] == [0.9, 0.5, 0.4]
    kept, begun = weights(tmp_path / "a"), weights(retriever)
    assert all(torch.equal(kept[name], begun[name]) for name in begun)


def test_the_divergence_of_scores_from_targets_by_hand() -> None:
    """Odds 1 : 2 : 5 under targets 3/4, 0 and 1/4."""
    divergence = _divergence(torch.tensor([1.0, 2.0, 5.0]).log(), torch.tensor([3.0, 0.0, 1.0]))
    assert divergence.item() == pytest.approx(0.75 * math.log(6) + 0.25 * math.log(2 / 5))


@pytest.mark.parametrize(
    ("scores", "targets", "rank"),
    [
        ([3.0, 2.0, 1.0], [1.0, 0.0, 0.0], 1),
        ([1.0, 2.0, 3.0], [1.0, 0.0, 0.0], 3),
        ([2.0, 2.0, 1.0], [1.0, 0.0, 0.0], 2),  # a tie counts against it
        ([1.0, 5.0, 3.0, 4.0], [1.0, 0.0, 0.5, 0.0], 3),  # of two targets the better
    ],
)
def test_rank_of_the_best_target(scores: list[float], targets: list[float], rank: int) -> None:
    assert best_rank(torch.tensor(scores), torch.tensor(targets)) == rank
