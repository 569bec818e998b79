"""Pre-training by the `train` step and by the recipe: two workers, kills, and models that other tools load."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.train import train
from tests.support import killing, tiny, toy
from tests.support.pretrainings import BOTH, Variant
from tests.support.tiny import Said
from tests.support.trainings import lines


def test_two_workers_train_as_one_process(
    ray: Machine, tmp_path: Path, data: Path, tokens: Path, retriever: Path, language_model: Path
) -> None:
    """SimLM over two spans of each document, with a generator that is trained: all that pre-training has. Masks,
    samples and spans are drawn alike, and spans see those of all workers."""
    variant = Variant("cocondenser", (*BOTH, "generator", "batch"), generator=True)
    options: dict[str, Any] = {"updates": 3, "batch": 8, "log_every": 1, "accumulate": 2, "losses": variant.losses}
    look = {"every": 3, "measure": "loss"}
    for place, machine in (("one", toy.INLINE), ("two", ray)):
        (tmp_path / place).mkdir()
        summary = train(
            tmp_path / place,
            machine,
            objective=variant.objective,
            rows=data,
            dev=data,
            data=data,
            tokens=tokens,
            start=retriever,
            seed=[1],
            config=toy.train_config(**options, validate_on_dev=look),
            **variant.own(language_model),
        )
    assert summary["workers"] == 2
    for a, b in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-5)
    a, b = (load_file(tmp_path / place / "state/optimizer.safetensors") for place in ("one", "two"))
    for key in b:
        torch.testing.assert_close(a[key], b[key], rtol=5e-3, atol=2e-5, msg=key)


def recipe(beir: Path, encoder: Path) -> dict[str, Any]:
    """A generator, SimLM and one retriever with and without it, each a training of a moment."""
    return {**tiny.simlm(beir, encoder), "retriever_2": None}


def test_the_recipe_killed_and_repeated_is_as_never_killed(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Offline: the generator is trained on the same documents first. Nothing of it is in the pre-trained model."""
    config = recipe(beir, encoder)
    whole, killed = tiny.place(tmp_path / "whole", config), tiny.place(tmp_path / "killed", config)
    assert whole("run") == 0
    first = ("--until", "pre-training")
    assert killing.run(killed, "checkpoint", 4, *first) == -signal.SIGKILL
    assert len(list(killed.store.glob("train-*/checkpoints/update-*"))) == 2
    assert killed("run", *first) == 0
    resumed = tiny.results(killed.store)
    assert sum(name.startswith("train-") for name in resumed) == 2  # the generator and the encoder
    assert resumed.items() <= tiny.results(whole.store).items()
    names = {row["system"] for row in whole.metrics()["rows"]}
    assert {"start model", "pre-trained", "retriever 1", "retriever 1 without pre-training"} <= names
    assert len(lines(whole.artifact("pre-training"))) == 3
    saved = whole.artifact("pre-training") / "model"
    start = whole.artifact("start retriever") / "model"
    assert {path.name for path in saved.rglob("*")} == {path.name for path in start.rglob("*")}
    assert load_file(saved / "model.safetensors").keys() == load_file(start / "model.safetensors").keys()
    assert json.loads((saved / "modules.json").read_text())[0]["path"] == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "pretrain.generator=null",
            "generator: null, and tokens are to be replaced or inserted; accepted: a masked language model",
        ),
        ("pretrain.bottleneck.task=masked", "generator: nothing here asks it; accepted: null"),
        ("pretrain.train.losses.0.over=batch", "the objective simlm accepts encoder, decoder, generator"),
        ("pretrain.generator.train.losses.0.over=encoder", "the objective mlm accepts tokens"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, change: str, message: str
) -> None:
    place = tiny.place(tmp_path, recipe(beir, encoder))
    assert place("plan", "--set", change) == 2
    assert message in said()[1]


@pytest.mark.parametrize(
    ("objective", "options"),
    [("cocondenser", {"bottleneck": {"task": "masked"}}), ("ict", {})],
    ids=["cocondenser", "ict"],
)
def test_the_rivals_are_options_of_the_recipe(
    beir: Path, encoder: Path, tmp_path: Path, objective: str, options: dict[str, Any]
) -> None:
    config = recipe(beir, encoder)
    config["pretrain"] = {
        "objective": objective,
        **options,
        "train": tiny.training(over="batch", updates=2, batch=8),
    }
    place = tiny.place(tmp_path, config)
    assert place("run", "--until", "pre-training") == 0
    assert len(lines(place.artifact("pre-training"))) == 2
