"""DiffCSE on a collection's texts, and DPR with DiffCSE on its queries, in a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.pretrainings import LIKELIHOOD
from tests.support.tiny import Said
from tests.support.trainings import lines


@pytest.fixture
def recipe(beir: Path, encoder: Path) -> dict[str, Any]:
    """A generator, DiffCSE, and DPR with and without edits, each a training of a moment."""
    small = tiny.dpr(beir, encoder)

    def moment(*discriminators: str) -> dict[str, Any]:
        edits = [{"function": LIKELIHOOD, "over": name, "weight": 0.005} for name in discriminators]
        contrast = {"function": tiny.CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}
        return {**tiny.training(updates=2, batch=8), "losses": [contrast, *edits]}

    return {
        **small, "recipe": "diffcse", "negatives": {"negatives": 0},
        "generator": {"model": {"model": str(encoder), "layers": 1, "document_tokens": 24, "dropout": 0.0}},
        "pretrain": moment("discriminator"), "train": moment("query discriminator", "document discriminator"),
    }  # fmt: skip


def test_diffcse_and_dpr_with_it(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Both trainings on queries begin from the encoder of texts and see the same groups; the retriever is the one with
    edits, and is saved without what detects them."""
    place = tiny.place(tmp_path, recipe)
    assert place("run") == 0
    names = {row["system"] for row in place.metrics()["rows"]}
    assert {"start model", "pre-trained", "retriever without edits", "retriever"} <= names
    terms = {label: {key for key in lines(place.artifact(label))[0] if key.endswith(")")} for label in
             ("pre-training", "retriever without edits", "retriever")}  # fmt: skip
    contrast, found = "cross_entropy (batch)", "negative_log_likelihood"
    assert terms == {
        "pre-training": {contrast, f"{found} (discriminator)"},
        "retriever without edits": {contrast},
        "retriever": {contrast, f"{found} (query discriminator)", f"{found} (document discriminator)"},
    }
    saved, start = (
        load_file(place.artifact(name) / "model/model.safetensors") for name in ("retriever", "start retriever")
    )
    assert saved.keys() == start.keys()


def test_the_encoder_can_be_measured_on_sentences(recipe: dict[str, Any], tmp_path: Path, said: Said) -> None:
    """By the recipe `sentences`, which takes the last retriever; SimCSE needs no generator."""
    plain = {**recipe, "objective": "simcse", "generator": None, "train": None}
    plain["pretrain"] = {**recipe["pretrain"], "losses": recipe["pretrain"]["losses"][:1]}
    pairs = {"data": {"format": "tsv", "path": str(tmp_path / "{split}.tsv"), "splits": ["test"]}}
    trained = tiny.write(tmp_path / "simcse.yaml", plain)
    place = tiny.place(
        tmp_path / "place", {"recipe": "sentences", "experiment": str(trained), "similarity": {"P": pairs}}
    )
    assert place("plan") == 0
    assert "pre-training" in said()[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("generator=null", "generator: edited texts want one"),
        ("difference.task=masked", "generator: edited texts want one, and nothing else does"),
        ("train.losses.0.over=query discriminator", "train: losses: all are over edits"),
        ("pretrain.losses.0.over=group", "the objective diffcse accepts batch, discriminator"),
        ("objective=simcse", "the objective simcse accepts batch"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    recipe: dict[str, Any], tmp_path: Path, said: Said, change: str, message: str
) -> None:
    assert tiny.place(tmp_path, recipe)("plan", "--set", change) == 2
    assert message in said()[1]
