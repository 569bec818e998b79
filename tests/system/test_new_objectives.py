"""A recipe and objectives from outside the repository's folders: run, kill, resume, and train with two workers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.train import train
from tests.support import killing, tiny, toy
from tests.support.tiny import Said
from tests.support.trainings import lines

MASKED = {"function": "components.losses.likelihood.negative_log_likelihood", "over": "tokens"}
VIEWS = {"function": toy.CROSS_ENTROPY, "over": "batch"}


def tree(beir: Path, encoder: Path, objective: str, loss: dict[str, Any]) -> dict[str, Any]:
    """An experiment that pre-trains on the toy collection."""
    small = tiny.dpr(beir, encoder)
    return {
        "recipe": "tests.support.pretrain",
        **{key: small[key] for key in ("data", "k", "encode", "retriever")},
        "objective": objective,
        "train": {**tiny.training(updates=4), "losses": [loss]},
    }


def test_masked_language_modelling_over_documents(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """A run that is killed after a checkpoint and repeated has the artifacts of one that never was."""
    config = tree(beir, encoder, "tests.support.masked_lm", MASKED)
    whole, killed = tiny.place(tmp_path / "whole", config), tiny.place(tmp_path / "killed", config)
    assert whole("run") == 0
    assert killing.run(killed, "checkpoint", 2) == -signal.SIGKILL
    assert len(list(killed.store.glob("train-*/checkpoints/update-*"))) == 2
    assert killed("run") == 0
    assert tiny.results(killed.store) == tiny.results(whole.store)
    names = [row["system"] for row in whole.metrics()["rows"] if row["measure"] == "RR@10"]
    assert names == ["BM25", "start model", "retriever"]


def test_two_views_of_sentences(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """The table that is trained on is that of a collection of sentences."""
    answered = shutil.copytree(beir, tmp_path / "toy")
    queries = [json.loads(line) for line in (answered / "queries.jsonl").read_text().splitlines()]
    documents = [json.loads(line) for line in (answered / "corpus.jsonl").read_text().splitlines()]
    word = documents[0]["text"].split()[0]
    lines_with_answers = [json.dumps({**query, "metadata": {"answers": [word]}}) for query in queries]
    (answered / "queries.jsonl").write_text("\n".join(lines_with_answers) + "\n")
    config = tree(answered, encoder, "tests.support.two_views", VIEWS)
    config["data"] = {"format": "sentences", "of": config["data"], "context": "none", "on_bad": "drop"}
    place = tiny.place(tmp_path, config)
    assert place("run") == 0
    losses = [line["cross_entropy (batch)"] for line in lines(place.artifact("retriever 1"))]
    assert len(losses) == 4


def test_a_view_that_an_objective_does_not_have_is_refused_before_anything_runs(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, "tests.support.masked_lm", VIEWS))
    assert place("plan") == 2
    assert "losses: over: got 'batch', but the objective tests.support.masked_lm accepts tokens" in said()[1]
    assert not list(place.store.glob("*"))


@pytest.mark.parametrize(
    ("objective", "loss"),
    [  # masks are drawn alike in tests/system/test_pretraining.py too
        pytest.param("tests.support.masked_lm", MASKED, marks=pytest.mark.slow),
        ("tests.support.two_views", VIEWS),
    ],
    ids=str,
)
def test_two_workers_train_as_one_process(
    ray: Machine, tmp_path: Path, data: Path, tokens: Path, retriever: Path, objective: str, loss: dict[str, Any]
) -> None:
    """Masks, views and BatchNorm see the rows of all workers alike."""
    for name, machine in (("one", toy.INLINE), ("two", ray)):
        (tmp_path / name).mkdir()
        summary = train(
            tmp_path / name,
            machine,
            objective=objective,
            rows=data,
            dev=data,
            data=data,
            tokens=tokens,
            start=retriever,
            seed=[1],
            config=toy.train_config(
                updates=3, batch=8, log_every=1, losses=[loss], validate_on_dev={"every": 3, "measure": "loss"}
            ),
        )
    assert summary["workers"] == 2
    for a, b in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-5)
    a, b = (load_file(tmp_path / name / "state/optimizer.safetensors") for name in ("one", "two"))
    for key in b:
        torch.testing.assert_close(a[key], b[key], rtol=5e-3, atol=2e-5, msg=key)
