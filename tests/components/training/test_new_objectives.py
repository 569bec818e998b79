"""Objectives of other shapes than retrieval's, each one short file: what every objective is promised holds for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.training.config import TrainConfig
from sparring.components.training.loop import train
from sparring.components.training.objective import ObjectiveInputs, make_objective
from tests.support import toy
from tests.support.trainings import Interrupted, assert_same, checked, lines, visits

LOSSES = {
    "tests.support.masked_lm": {"function": "components.losses.likelihood.negative_log_likelihood", "over": "tokens"},
    "tests.support.two_views": {"function": toy.CROSS_ENTROPY, "over": "batch"},
}
NAMES = pytest.mark.parametrize("name", list(LOSSES))


@pytest.fixture
def build(data: Path, tokens: Path, retriever: Path) -> Any:
    """Makes an objective over the toy documents."""

    def made(name: str, *, max_tokens: int = 200, recompute: bool = False) -> Any:
        inputs = ObjectiveInputs(
            model=retriever / "model",
            rows=data,
            data=data,
            tokens=tokens,
            losses=config(name).losses,
            max_tokens=max_tokens,
            recompute=recompute,
        )
        return make_objective(name, inputs, seed=1)

    return made


def config(name: str, **options: Any) -> TrainConfig:
    return toy.train_config(**{"losses": [LOSSES[name]], "log_every": 1, "batch": 8, **options})


def run(objective: Any, out: Path, settings: TrainConfig, *, stop: int | None = None, dev: Path | None = None) -> Any:
    """Train it, perhaps up to an interruption."""

    def on_update(update: int, note: str) -> None:
        if update == stop:
            raise Interrupted

    out.mkdir(exist_ok=True)
    return train(
        objective,
        settings,
        out=out,
        seed=1,
        start=None,
        device=torch.device("cpu"),
        dev=objective.reading(dev) if dev is not None else None,
        save_seconds=-1.0,
        on_update=on_update,
    )


@NAMES
def test_training_lowers_the_loss(build: Any, tmp_path: Path, name: str) -> None:
    run(build(name), tmp_path / "a", config(name, updates=30, batch=16, learning_rate=5e-3))
    losses = [line[key] for line in lines(tmp_path / "a") for key in line if key.endswith(")")]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@NAMES
def test_killed_and_resumed_is_as_never_killed(build: Any, tmp_path: Path, name: str) -> None:
    settings = config(name, updates=6)
    run(build(name), tmp_path / "a", settings)
    for stop in (1, 4):
        with pytest.raises(Interrupted):
            run(build(name), tmp_path / "b", settings, stop=stop)
    run(build(name), tmp_path / "b", settings)
    assert_same(tmp_path / "a", tmp_path / "b")


@NAMES
@pytest.mark.parametrize("options", [{}, {"max_tokens": 60}, {"max_tokens": 60, "recompute": True}], ids=str)
def test_the_gradient_in_pieces_is_that_of_one_pass(build: Any, name: str, options: dict[str, Any]) -> None:
    assert checked(build(name, **options)) < 1e-4


@NAMES
def test_random_choices_differ_between_visits_and_not_between_workers(build: Any, name: str) -> None:
    """A row's batch is drawn from (seed, row, visit), whatever rows stand beside it."""
    objective = build(name)

    def ids(batch: Any) -> torch.Tensor:
        return batch.ids if hasattr(batch, "ids") else batch.first.ids

    first = ids(objective.collate(visits([3, 4])))
    again = ids(objective.collate(visits([9, 4])))
    width = min(first.shape[1], again.shape[1])
    assert torch.equal(first[1, :width], again[1, :width])
    (second,) = ids(objective.collate([visits([4])[0]._replace(visit=1)]))
    assert not torch.equal(first[1, : len(second)], second[: first.shape[1]])


@NAMES
def test_heads_are_in_checkpoints_and_not_in_the_model(build: Any, tmp_path: Path, name: str) -> None:
    objective = build(name)
    heads = {key for key in objective.state_dict() if not key.startswith("model.")}
    assert heads
    run(objective, tmp_path / "a", config(name, updates=2))
    saved = DualEncoder.load(tmp_path / "a" / "model").state_dict()
    assert saved.keys() == {key.removeprefix("model.") for key in objective.state_dict()} - heads


@NAMES
def test_validation_measures_the_held_out_loss(build: Any, data: Path, tmp_path: Path, name: str) -> None:
    """Two looks at a model that does not move see the same rows, masks and views, and so the same loss."""
    look = {"every": 1, "measure": "loss"}
    settings = config(name, updates=2, validate_on_dev=look, learning_rate=1e-12)
    summary = run(build(name), tmp_path / "a", settings, dev=data)
    looks = [line["dev loss"] for line in lines(tmp_path / "a") if "dev loss" in line]
    assert looks[1] == pytest.approx(looks[0], rel=1e-3)
    assert summary["best"]["value"] == min(looks)


def test_a_view_that_an_objective_does_not_have_is_refused(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparring.components.config import UserError

    name = "tests.support.masked_lm"
    monkeypatch.setitem(LOSSES, name, {**LOSSES[name], "over": "group"})
    with pytest.raises(UserError, match="losses: over: got 'group', but the objective masked_lm accepts tokens"):
        build(name)


def test_a_frozen_companion_is_in_no_checkpoint_and_moves_with_the_objective(build: Any) -> None:
    objective = build("tests.support.masked_lm")
    companion = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    before = objective.state_dict().keys()
    objective.add_frozen("generator", companion)
    objective.train().to(torch.float64)
    assert objective.state_dict().keys() == before
    assert objective.frozen("generator")[0].weight.dtype == torch.float64
    assert not objective.frozen("generator").training
    assert not any(p.requires_grad for p in companion.parameters())


def test_an_objective_may_summarise_all_rows_at_once(build: Any, data: Path, tmp_path: Path) -> None:
    """A rank correlation is no mean over rows: it is made of the values of all of them, in the rows' order."""
    objective = build("tests.support.two_views")
    seen: list[list[float]] = []

    def judge(representations: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"predicted": representations[0][:, 0], "human": batch.first.mask.sum(-1).double()}

    def summarise(values: dict[str, list[float]]) -> dict[str, float]:
        seen.append(values["human"])
        return {"Spearman": 0.5}

    dev = objective.reading(data)
    dev.judge, dev.summarise = judge, summarise
    settings = config("tests.support.two_views", updates=1, validate_on_dev={"every": 1, "measure": "Spearman"})
    train(
        objective,
        settings,
        out=tmp_path,
        seed=1,
        start=None,
        device=torch.device("cpu"),
        dev=dev,
        save_seconds=1e9,
        on_update=lambda update, note: None,
    )
    assert json.loads((tmp_path / "state" / "state.json").read_text())["summary"]["best"]["value"] == 0.5
    wanted = [dev.collate([visit]).first.mask.sum().item() for visit in visits(range(objective.rows()))]
    assert seen == [wanted]
