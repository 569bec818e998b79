"""The step that trains: inline and on Ray Train alike, resumed, and refusing what cannot be shared."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparring.components import timing
from sparring.components.config import UserError
from sparring.components.training.config import TemperatureConfig
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.machines import changed
from tests.support.trainings import lines, updates_of_two_runs

ROWS = [
    {"query_id": f"q{i}", "doc_ids": [f"d{i}", f"d{(i + 13) % 40}", f"d{(i + 17) % 40}"], "teacher": [2.0, 1.0, 0.5]}
    for i in range(12)
]
LOSSES = [
    {"function": toy.CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.5}},
    {"function": "components.losses.listwise.distillation"},
]


@pytest.fixture
def run(tmp_path: Path, data: Path, tokens: Path, retriever: Path, ranker: Path) -> Any:
    """Trains at `tmp_path / place` through the step."""
    groups = toy.write_groups(tmp_path / "groups", ROWS)

    def trained(
        place: str,
        *,
        objective: str = "retriever",
        machine: Machine = toy.INLINE,
        dev: bool = False,
        vectors: Path | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        (tmp_path / place).mkdir(exist_ok=True)
        defaults = {"losses": LOSSES, "log_every": 1} if objective == "retriever" else {"log_every": 1}
        return train(
            tmp_path / place,
            machine,
            objective=objective,
            rows=groups,
            dev=groups if dev else None,
            data=data,
            tokens=tokens,
            start={"retriever": retriever, "ranker": ranker}[objective],
            seed=[1],
            config=toy.train_config(**{**defaults, **config}),
            **({"vectors": vectors} if vectors else {}),
        )

    return trained


@pytest.mark.parametrize("objective", ["retriever", "ranker"])
def test_a_trained_model_is_there_and_begins_the_next_training(run: Any, tmp_path: Path, objective: str) -> None:
    summary = run("a", objective=objective, dev=True, validate_on_dev={"every": 2})
    assert summary["updates"] == 4
    assert 0 < summary["best"]["value"] <= 1
    assert (tmp_path / "a/model/sparring.json").exists()
    progress = json.loads((tmp_path / "a/progress.json").read_text())
    assert (progress["total"], progress["unit"]) == (4, "updates")
    names = {"retriever": {"cross_entropy (batch)", "distillation (group)"}, "ranker": {"cross_entropy (group)"}}
    assert names[objective] <= lines(tmp_path / "a")[0].keys()


def test_a_training_that_changes_nothing_says_so(run: Any) -> None:
    assert "note" not in run("learns")
    nothing = [{"function": toy.CROSS_ENTROPY, "over": "batch", "weight": 0.0}]
    assert "the model is unchanged" in run("nothing to learn", losses=nothing)["note"]


def test_an_interrupted_training_resumes_from_its_checkpoint(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step called again on the same place; the progress begins where the checkpoint is."""
    run("a")
    assert updates_of_two_runs(monkeypatch, lambda: run("b")) == ([0, 1], [2, 3])
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    a, b = (load_file(tmp_path / name / "model/model.safetensors") for name in "ab")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert json.loads((tmp_path / "b/progress.json").read_text())["first"] == 2


def test_a_resumed_training_has_the_time_of_all_its_attempts(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the checkpoint that it resumed from."""
    began = []

    def attempt() -> None:
        timing.drain()
        began.append(time.time())
        run("a")

    updates_of_two_runs(monkeypatch, attempt)
    computed = [interval for interval in timing.drain() if interval.kind == "compute"]
    assert any(began[0] < interval.began < interval.ended < began[1] for interval in computed)
    assert any(began[1] < interval.began for interval in computed)


@pytest.mark.parametrize(
    ("batch", "accumulate", "workers", "message"),
    [
        (6, 4, 1, r"batch: 6 rows cannot be divided into 4 equal parts \(accumulate\). Use a multiple of 4."),
        (3, 1, 4, r"batch: 3 rows at once \(batch / accumulate\) are too few for 4 workers. Use at least 4"),
        (8, 4, 4, r"batch: 2 rows at once \(batch / accumulate\) are too few for 4 workers. Use at least 16"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_a_users_mistake(
    run: Any, batch: int, accumulate: int, workers: int, message: str
) -> None:
    machine = changed(toy.INLINE, {"train": toy.INLINE.cluster.train.model_copy(update={"workers": workers})})
    with pytest.raises(UserError, match=message):
        run("a", batch=batch, accumulate=accumulate, machine=machine)


@pytest.fixture
def coder(tmp_path: Path, data: Path, tokens: Path, retriever: Path, vectors: Path) -> Any:
    """Trains queries alone on soft targets, through the step."""
    rows = [
        {**{k: r[k] for k in ("query_id", "doc_ids")}, "targets": [0.6, 0.1 * (i % 4), 0.3]} for i, r in enumerate(ROWS)
    ]
    groups = toy.write_groups(tmp_path / "soft", rows)

    def trained(place: str, *, machine: Machine = toy.INLINE, **config: Any) -> dict[str, Any]:
        (tmp_path / place).mkdir(exist_ok=True)
        defaults = {"losses": [{"function": "components.losses.listwise.divergence"}], "log_every": 1}
        return train(
            tmp_path / place,
            machine,
            objective="coder",
            rows=groups,
            dev=groups,
            data=data,
            tokens=tokens,
            start=retriever,
            seed=[1],
            config=toy.train_config(**{**defaults, **config}),
            vectors=vectors,
            temperature=TemperatureConfig(start=0.2, pace=5),
        )

    return trained


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    (folder := tmp_path / "vectors").mkdir()
    return toy.write_document_vectors(folder, [np.random.default_rng(0).standard_normal((40, 32)).astype(np.float16)])


def test_two_workers_train_queries_alone_as_one(coder: Any, tmp_path: Path, ray: Machine) -> None:
    """Losses, what is seen of the development table, and moments; the temperature is among them."""
    look = {"every": 2, "from_start": True, "measure": "loss"}
    summary = coder("ray", machine=ray, updates=4, batch=6, validate_on_dev=look)
    coder("inline", updates=4, batch=6, validate_on_dev=look)
    assert summary["workers"] == 2
    a, b = lines(tmp_path / "ray"), lines(tmp_path / "inline")
    assert [line["update"] for line in a if "dev loss" in line] == [0, 2, 4]
    for value, expected in zip(a, b, strict=True):
        assert value == pytest.approx(expected, rel=1e-3, abs=2e-5)
    moments, wanted = (load_file(tmp_path / name / "state/optimizer.safetensors") for name in ("ray", "inline"))
    for key in wanted:
        torch.testing.assert_close(moments[key], wanted[key], rtol=5e-3, atol=2e-5, msg=key)
    temperatures = [
        json.loads((tmp_path / name / "model/temperature.json").read_text())["temperature"]
        for name in ("ray", "inline")
    ]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-4)


def test_training_on_contexts_lowers_the_divergence(coder: Any, tmp_path: Path) -> None:
    coder("out", updates=40, batch=12, log_every=10, learning_rate=5e-3, warmup=0.0)
    divergences = [line["divergence (group)"] for line in lines(tmp_path / "out")]
    assert divergences[-1] < 0.3 * divergences[0]


def test_an_objective_that_is_given_what_it_does_not_take_says_so(run: Any, tmp_path: Path, vectors: Path) -> None:
    with pytest.raises(TypeError, match="vectors"):
        run("out", vectors=vectors)


def test_two_workers_of_ray_train_are_one_process(run: Any, tmp_path: Path, ray: Machine) -> None:
    summary = run("ray", machine=ray, updates=3, batch=6)
    run("inline", updates=3, batch=6)
    assert summary["workers"] == 2
    for a, b in zip(lines(tmp_path / "ray"), lines(tmp_path / "inline"), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-5)
    a, b = (load_file(tmp_path / name / "state/optimizer.safetensors") for name in ("ray", "inline"))
    for key in b:
        torch.testing.assert_close(a[key], b[key], rtol=5e-3, atol=2e-5, msg=key)
    assert (tmp_path / "ray/model/model.safetensors").exists()


def test_two_workers_of_ray_train_with_a_part_of_each_layer_are_one_process(
    run: Any, tmp_path: Path, ray: Machine
) -> None:
    sharded = changed(ray, {"train": ray.cluster.train.model_copy(update={"shard": True})})
    summary = run("ray", machine=sharded, updates=3, batch=6)
    run("inline", updates=3, batch=6)
    assert summary["workers"] == 2
    for a, b in zip(lines(tmp_path / "ray"), lines(tmp_path / "inline"), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-5)
    a, b = (load_file(tmp_path / name / "model/model.safetensors") for name in ("ray", "inline"))
    assert {name: value.shape for name, value in a.items()} == {name: value.shape for name, value in b.items()}


def test_what_cannot_be_sharded_says_so(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparring.components.training import sharding

    monkeypatch.setattr(sharding, "workers", lambda: 2)
    from sparring.components.training.objective import objective_named

    for name in ("generator", "reader"):
        unmade = objective_named(name).__new__(objective_named(name))
        with pytest.raises(UserError, match=f"cluster: train: shard: the objective {name} divides batches itself"):
            sharding.shard(unmade, torch.device("cpu"))
