"""Training an adapter: what checkpoints keep, what a training that was killed ends with, and that the body stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.components.compute import chunking
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.retriever import Objective
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.trainings import Interrupted, assert_close, assert_same, checked, groups, weights

ADAPTER = {"rank": 3, "dropout": 0.2}
BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch"}


@pytest.fixture
def adapted(tmp_path: Path, encoder: Path) -> Path:
    """A start retriever of two towers with adapters and a projection."""
    config = toy.retriever_config(encoder, towers="separate", projection=8, adapter=ADAPTER, dropout=0.3)
    return toy.started(tmp_path / "adapted", config)


def test_interrupted_it_ends_as_if_never_interrupted(run: Any, tmp_path: Path, adapted: Path) -> None:
    """With the best of its validations, whose weights come from a checkpoint too."""
    options = {
        "updates": 5,
        "start": adapted,
        "losses": [BATCH],
        "dev": True,
        "validate_on_dev": {"every": 2},
        "learning_rate": 1e-2,
    }
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=3, **options)
    kept = [load_file(path) for path in (tmp_path / "b/checkpoints").rglob("weights.safetensors")]
    assert len(kept) >= 2
    assert all("lora_" in name or name.startswith("model.projections.") for names in kept for name in names)
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")
    assert not any(
        torch.equal(value, weights(adapted)[name])
        for name, value in weights(tmp_path / "a").items()
        if "lora_B" in name
    )


def test_the_next_training_carries_on(run: Any, tmp_path: Path, adapted: Path) -> None:
    """From its weights, its optimizer and its place on the schedule: as one training of all updates."""
    options = {"losses": [BATCH], "schedule": "constant", "warmup": 0.0, "learning_rate": 1e-2, "batch": 24}
    run("a", updates=2, start=adapted, **options)
    run("b", updates=2, start=tmp_path / "a", carry="all", **options)
    state = load_file(tmp_path / "b/state/optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("/step")} == {4.0}
    for name in ("a", "b"):
        size = sum(path.stat().st_size for path in (tmp_path / name).rglob("*.safetensors"))
        assert size < 8 * sum(value.numel() * 4 for value in weights(adapted).values())
        assert len(weights(tmp_path / name)) == len(weights(adapted))


def test_pieces_that_are_run_again_give_the_gradient_of_one_pass(
    run: Any, tmp_path: Path, adapted: Path, encoder: Path
) -> None:
    model = toy.started(tmp_path / "plain", toy.retriever_config(encoder, adapter={"rank": 3}, towers="separate"))
    options = {"updates": 3, "losses": [BATCH], "start": model, "batch": 8}
    run("a", piece=10_000, **options)
    run("b", piece=40, recompute=True, **options)
    assert_close(tmp_path / "a", tmp_path / "b")


def test_the_check_before_the_first_update_sees_adapters(
    tmp_path: Path, data: Path, tokens: Path, adapted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring.components.training.self_check import SelfCheckError
    from tests.support.trainings import break_gradients

    rows = toy.write_groups(tmp_path / "rows", groups(8))
    losses = toy.train_config(losses=[BATCH]).losses
    inputs = ObjectiveInputs(
        model=adapted / "model", rows=rows, data=data, tokens=tokens, losses=losses, max_tokens=40, recompute=True
    )
    assert checked(Objective(inputs)) < 1e-3
    break_gradients(monkeypatch)
    with pytest.raises(SelfCheckError):
        checked(Objective(inputs))
    assert not chunking.is_unchunked()


def test_the_body_stays_as_it_was(run: Any, tmp_path: Path, adapted: Path) -> None:
    """In the memory that others share, with weight decay and a rate that moves everything else."""
    held = DualEncoder.load(adapted / "model")
    before = {name: value.clone() for name, value in held.state_dict().items()}
    run("a", updates=3, start=adapted, losses=[BATCH], learning_rate=0.1, weight_decay=0.5)
    assert all(torch.equal(value, before[name]) for name, value in held.state_dict().items())
