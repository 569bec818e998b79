"""A rehearsal without a GPU: every objective trains on a device that holds none of the tensors made by accident."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.compute.gather import workers
from sparring.components.objectives.parts.config import DifferenceConfig
from sparring.components.training.config import HardestConfig, TemperatureConfig
from sparring.components.training.loop import train
from sparring.components.training.objective import ObjectiveInputs, make_objective
from tests.components.losses.test_contract import ALL, some_scores
from tests.components.objectives.test_generator import learning as writers  # noqa: F401 (a fixture)
from tests.components.objectives.test_generator import objective as generator
from tests.components.objectives.test_reader import learning as reading  # noqa: F401 (a fixture)
from tests.components.objectives.test_reader import objective as reader
from tests.support import toy
from tests.support.other_device import DEVICE, There, WrongDeviceError, rehearsed
from tests.support.pretrainings import DIFFCSE, LIKELIHOOD, VARIANTS, Artifacts
from tests.support.trainings import groups, lines

BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch"}
PLAIN: dict[str, dict[str, Any]] = {
    "retriever": {
        "losses": [
            BATCH,
            {"function": "components.losses.listwise.distillation"},
            {"function": "components.losses.same_tower.samtone", "over": "batch"},
        ]
    },
    "ranker": {
        "losses": [
            {"function": toy.CROSS_ENTROPY},
            {"function": "components.losses.listwise.symmetric_kl", "over": "passes"},
        ],
        "hardest": HardestConfig(keep=2),
    },
    "query_reranker": {"losses": [{"function": "components.losses.query_ranks.ranking"}]},
    "coder": {"losses": [{"function": "components.losses.listwise.divergence"}]},
    "diffcse_retriever": {
        "losses": [
            BATCH,
            {"function": LIKELIHOOD, "over": "query discriminator"},
            {"function": LIKELIHOOD, "over": "document discriminator"},
        ],
        "difference": DifferenceConfig(),
    },
}
"""Objectives over groups: their losses and own arguments."""
EVERY = [*PLAIN, *VARIANTS, *DIFFCSE, "generator", "reader"]


@pytest.fixture
def made(
    tmp_path: Path,
    data: Path,
    tokens: Path,
    retriever: Path,
    ranker: Path,
    language_model: Path,
    pretraining: Artifacts,
    request: pytest.FixtureRequest,
) -> Callable[[str], tuple[Any, list[dict[str, Any]]]]:
    """An objective by its name, and its losses."""

    def make(name: str) -> tuple[Any, list[dict[str, Any]]]:
        if name in (variants := {**VARIANTS, **DIFFCSE}):
            return pretraining.objective(variants[name], max_tokens=100), variants[name].losses
        if name == "generator":
            return generator(request.getfixturevalue("writers")("bert"), max_tokens=60), [{"function": LIKELIHOOD}]
        if name == "reader":
            return reader(request.getfixturevalue("reading"), max_tokens=60), [{"function": LIKELIHOOD}]
        actual = dict(PLAIN[name])
        losses = actual.pop("losses")
        if name == "coder":
            vectors = np.random.default_rng(3).standard_normal((40, 32)).astype(np.float16)
            (folder := tmp_path / "vectors").mkdir()
            actual |= {"vectors": toy.write_document_vectors(folder, [vectors]), "temperature": TemperatureConfig()}
        if name == "diffcse_retriever":
            actual["generator"] = language_model
        inputs = ObjectiveInputs(
            model=(ranker if name in ("ranker", "query_reranker") else retriever) / "model",
            rows=toy.write_groups(tmp_path / "groups", groups(12, teacher=True)),
            data=data,
            tokens=tokens,
            losses=toy.train_config(losses=losses).losses,
            max_tokens=60,
            recompute=False,
        )
        return make_objective(name, inputs, seed=1, **actual), losses

    return make


# Hugging Face warns that what it makes of an encoder has had another loss once.
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("name", EVERY)
def test_an_objective_trains_there(made: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check before the first update, forward, backward, clipping, update, checkpoint, and the model at the end."""
    objective, losses = made(name)
    monkeypatch.setattr(objective, "rate", lambda **_: None)  # what the processor does at best, of which there is none
    config = toy.train_config(updates=2, batch=4, log_every=1, losses=losses)
    (out := tmp_path / "out").mkdir()
    with rehearsed(monkeypatch) as device:
        train(
            objective,
            config,
            out=out,
            seed=1,
            start=None,
            device=device,
            dev=None,
            save_seconds=-1.0,
            on_update=lambda update, note: None,
        )
    assert {type(parameter.data) for parameter in objective.parameters()} == {There}
    assert len(lines(out)) == 2
    assert all(np.isfinite(line["gradient_norm"]) for line in lines(out))
    assert (out / "model").is_dir()
    assert workers() == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("name", EVERY)
def test_an_objective_trains_with_bf16_weights(made: Any, name: str, tmp_path: Path) -> None:
    """On a CPU, whose layers refuse numbers of two precisions where a GPU converts them."""
    objective, losses = made(name)
    result = []
    for place, weights in (("a", "fp32"), ("b", "bf16")):
        if place == "b":
            (tmp_path / "vectors").rename(tmp_path / "moved") if name == "coder" else None
            objective, _ = made(name)
        config = toy.train_config(updates=2, batch=4, log_every=1, losses=losses, precision="bf16", weights=weights)
        (out := tmp_path / place).mkdir()
        train(
            objective,
            config,
            out=out,
            seed=1,
            start=None,
            device=torch.device("cpu"),
            dev=None,
            save_seconds=-1.0,
            on_update=lambda update, note: None,
        )
        result.append(lines(out)[0])
        assert {parameter.dtype for parameter in objective.parameters()} == {torch.float32}
    for name, value in result[0].items():
        assert result[1][name] == pytest.approx(value, rel=0.3 if name == "gradient_norm" else 0.05, abs=0.02)


@ALL
def test_a_loss_makes_no_tensor_elsewhere(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = some_scores()
    with rehearsed(monkeypatch) as device:
        parts = {name: getattr(scores, name).to(device) for name in ("student", "target", "where", "teacher")}
        blocks = {
            name: type(block)(*(part.to(device) for part in vars(block).values()))
            for name, block in scores.others.items()
        }
        parts["student"].requires_grad_()
        values = loss(type(scores)(**parts, others=blocks))
        values.sum().backward()
    assert isinstance(values.data, There)
    assert isinstance(parts["student"].grad, There)
    torch.testing.assert_close(values.detach().inner, loss(scores))


def test_the_rehearsal_refuses_tensors_of_both_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes what a GPU takes: numbers, tensors of no dimension, indices, and copies."""
    with rehearsed(monkeypatch) as device:
        forward = torch.arange(6.0, device=device).view(2, 3)
        assert forward.device == DEVICE
        place = torch.ones(2, 3)
        for wrong in (lambda: forward + place, lambda: torch.cat([forward, place]), lambda: forward[0].dot(place[0])):
            with pytest.raises(WrongDeviceError):
                wrong()
        assert (forward + torch.tensor(1.0)).sum().item() == 21
        assert forward[torch.tensor([1])].cpu().tolist() == [[3.0, 4.0, 5.0]]
        assert (forward + place.to(device)).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        assert forward[forward > 3].sum().item() == 9
