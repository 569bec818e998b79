"""A retriever that begins where another experiment ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from sparring.workflows.systems.rows import Outcome
from tests.support import tiny

LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


def training_over(view: str) -> dict[str, Any]:
    return tiny.training(over=view, updates=2, batch=8)


@pytest.fixture
def simlm(tmp_path: Path, beir: Path, encoder: Path) -> Path:
    """Pre-training alone."""
    return tiny.write(tmp_path / "simlm.yaml", {**tiny.simlm(beir, encoder), "retriever_1": None})


def built(folder: Path, tree: dict[str, Any], *assignments: str) -> Outcome:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), list(assignments), folder).outcome


@pytest.mark.parametrize(("recipe", "first"), [("dpr", "retriever"), ("ar2", "warm retriever")])
def test_each_seed_begins_from_the_pre_training_with_that_seed(
    tmp_path: Path, beir: Path, encoder: Path, simlm: Path, recipe: str, first: str
) -> None:
    tree = getattr(tiny, recipe)(beir, encoder)
    model = {**tiny.simlm(beir, encoder)["retriever"]}
    tree["retriever"] = {**tree["retriever"], "model": model} if recipe == "ar2" else model
    outcome = built(tmp_path, {**tree, "start_from": str(simlm)}, "seeds=[1, 2]")
    output = {node.label: node for node in graph([outcome.results])}
    for seed in (1, 2):
        expected = loading.read_outcome(simlm, [f"seeds=[{seed}]"]).retrieval.retriever
        assert output[f"{first} (seed {seed})"].inputs["start"].fingerprint == expected.fingerprint
        assert output[f"simlm: pre-training (seed {seed})"].fingerprint == expected.fingerprint
    assert "pre-trained" in {system.name for system in outcome.rows}


@pytest.mark.parametrize(("recipe", "first"), [("dpr", "retriever"), ("ar2", "warm retriever")])
def test_pre_training_is_a_key_of_the_recipe_too(
    tmp_path: Path, beir: Path, encoder: Path, simlm: Path, recipe: str, first: str
) -> None:
    """With the same collection, the training that recipe `simlm` makes."""
    tree, second = getattr(tiny, recipe)(beir, encoder), tiny.simlm(beir, encoder)
    model = second["retriever"]
    tree["retriever"] = {**tree["retriever"], "model": model} if recipe == "ar2" else model
    outcome = built(tmp_path, {**tree, "data": second["data"], "pretrain": second["pretrain"]}, "seeds=[1, 2]")
    output = {node.label: node for node in graph([outcome.results])}
    for seed in (1, 2):
        expected = loading.read_outcome(simlm, [f"seeds=[{seed}]"]).retrieval.retriever
        assert output[f"{first} (seed {seed})"].inputs["start"].fingerprint == expected.fingerprint
    assert "pre-trained" in {system.name for system in outcome.rows}


def test_both_towers_begin_from_one_pre_trained_encoder(tmp_path: Path, beir: Path, encoder: Path, simlm: Path) -> None:
    """By `pretrain`, and by `start_from` an experiment with shared towers, which makes the same retriever."""
    second = tiny.simlm(beir, encoder)
    tree = {**tiny.dpr(beir, encoder), "retriever": {**second["retriever"], "towers": "separate"}}
    inside = {node.label: node for node in graph([built(tmp_path, {**tree, "pretrain": second["pretrain"]}).results])}
    outside = {node.label: node for node in graph([built(tmp_path, {**tree, "start_from": str(simlm)}).results])}
    for output, trained in ((inside, "pre-training"), (outside, "simlm: pre-training")):
        first = output["pre-training, two towers"]
        assert output["retriever"].inputs["start"] is first
        assert (first.inputs["config"].towers, first.inputs["encoder"]) == ("separate", output[trained])
        assert output[trained].inputs["start"].inputs["config"].towers != "separate"
    place = tiny.place(tmp_path / "place", {**tree, "start_from": str(simlm)})
    assert place("run", "--until", "pre-training, two towers") == 0
    folder = place.artifact("pre-training, two towers") / "model"
    query, document = (load_file(folder / side / "model.safetensors") for side in ("query", "document"))
    learnt = load_file(place.artifact("simlm: pre-training") / "model" / "model.safetensors")
    assert learnt.keys() == query.keys() == document.keys()
    assert all(learnt[key].equal(query[key]) and learnt[key].equal(document[key]) for key in learnt)


def test_what_is_pre_trained_with_two_towers_has_two_where_it_goes_on(
    tmp_path: Path, beir: Path, encoder: Path, simlm: Path
) -> None:
    """Another experiment that has made two towers of one encoder already is not taken apart again."""
    second = tiny.simlm(beir, encoder)
    retriever = {**second["retriever"], "towers": "separate"}
    tiny.write(simlm, {**second, "retriever_1": None, "retriever": retriever})
    outcome = built(tmp_path, {**tiny.dpr(beir, encoder), "retriever": retriever, "start_from": str(simlm)})
    output = {node.label: node for node in graph([outcome.results])}
    assert output["retriever"].inputs["start"] is output["simlm: pre-training, two towers"]


def test_phases_of_one_encoder_come_before_those_of_two_towers(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = {**tiny.dpr(beir, encoder)}
    tree["retriever"] = {**tree["retriever"], "pooling": "cls", "towers": "separate"}
    masked = {
        "objective": "simlm",
        "bottleneck": {"task": "masked"},
        "train": {**training_over("encoder"), "losses": [{"function": LIKELIHOOD, "over": "encoder"}]},
    }
    pairs = {"objective": "ict", "train": training_over("batch")}
    output = {
        node.label: node for node in graph([built(tmp_path, {**tree, "pretrain": [masked, masked, pairs]}).results])
    }
    first, second, third = (output[f"pre-training {i}"] for i in (1, 2, 3))
    assert first.inputs["start"].inputs["config"].towers == "shared"
    assert second.inputs["start"] is first
    assert third.inputs["start"] is output["pre-training 2, two towers"]
    assert output["retriever"].inputs["start"] is third
    with pytest.raises(
        UserError, match=r"pretrain\.1: simlm trains one encoder, and the phase before it has trained two"
    ):
        built(tmp_path, {**tree, "pretrain": [pairs, masked]})


def test_a_retriever_learns_from_crops_first(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = tiny.dpr(beir, encoder)
    tree["pretrain"] = {
        "objective": "ict",
        "cloze": {"pairs": "crops"},
        "train": tiny.training(over="batch", updates=2, batch=8),
    }
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    assert {"pre-trained", "retriever"} <= {row["system"] for row in place.metrics()["rows"]}


def test_it_runs_over_another_collection(tmp_path: Path, beir: Path, encoder: Path, simlm: Path) -> None:
    """Where the documents are pre-trained on is the other experiment's to say; here they are read in another way."""
    second = tiny.simlm(beir, encoder)
    tiny.write(simlm, {**second, "retriever_1": None, "data": {**second["data"], "on_bad": "drop"}})
    place = tiny.place(
        tmp_path / "place",
        {
            **tiny.dpr(beir, encoder),
            "retriever": second["retriever"],
            "negatives": {"negatives": 0},
            "start_from": str(simlm),
        },
    )
    assert place("run", "--until", "retriever") == 0
    assert {"simlm:-data", "data"} <= {link.partition("-")[2] for link in place.links()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("retriever.projection=4", "simlm.yaml: its retriever is made from another model; accepted: the same"),
        ("retriever.pooling=mean", "simlm.yaml: its retriever is made from another model; accepted: the same"),
        ("start_from=nowhere.yaml", "nowhere.yaml"),
        ("start_from={folder}/untrained.yaml", "untrained.yaml: it trains no retriever; accepted: an experiment that"),
        ("start_from={folder}/several.yaml", "several.yaml: recipe: folds: it has no seeds; accepted: one that has"),
        ("train=null", "start_from: a training begins from it, and there is no training"),
        (
            "pretrain={objective: ict, train: {updates: 1, batch: 2, losses: [{function: "
            "components.losses.listwise.cross_entropy, over: batch}]}}",
            "pretrain and start_from: both say",
        ),
    ],
)
def test_mistakes_are_told(tmp_path: Path, beir: Path, encoder: Path, simlm: Path, change: str, message: str) -> None:
    retriever = tiny.simlm(beir, encoder)["retriever"]
    tree = {**tiny.dpr(beir, encoder), "retriever": retriever, "start_from": str(simlm)}
    tiny.write(tmp_path / "untrained.yaml", {**tree, "start_from": None, "train": None})
    tiny.write(tmp_path / "several.yaml", {"recipe": "folds", "experiment": "untrained.yaml"})
    change = change.replace("{folder}", str(tmp_path))
    with pytest.raises(UserError, match=message):
        built(tmp_path, tree, change)
