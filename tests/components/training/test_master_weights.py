"""bf16 weights over fp32 masters: what bf16 alone would lose, resuming, what is saved, what memory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sparring.components.config import UserError
from sparring.components.training import loop, master_weights
from tests.support import toy
from tests.support.trainings import Interrupted, assert_same, lines, weights

BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch"}
HALF = {"precision": "bf16", "weights": "bf16", "losses": [BATCH]}


class Layered(nn.Module):
    """Token embeddings, one layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.head = nn.Linear(4, 1)
        for weight in self.parameters():
            nn.init.ones_(weight)


def test_updates_that_are_too_small_for_bf16_add_up() -> None:
    """Steps of 1/1024 below 1, where bf16's next number is 1/256 away: 8 of them are 1/128, and none by itself is
    anything. The weight is the master rounded at every step."""
    module = Layered()
    master_weights.keep(module)
    layer = module.layers[0].weight
    optimizer = torch.optim.SGD([master_weights.master(p) for p in module.parameters()], lr=1 / 1024)
    alone = torch.ones(4, 4, dtype=torch.bfloat16)
    for step in range(1, 9):
        for part in (0.25, 0.75):  # two parts of a batch
            layer.grad = torch.full((4, 4), part, dtype=torch.bfloat16)
            master_weights.take_gradients(module)
        assert layer.grad is None
        optimizer.step()
        master_weights.round_weights(module)
        alone -= 1 / 1024
        exact = torch.full((4, 4), 1 - step / 1024)
        assert torch.equal(master_weights.master(layer), exact)
        assert torch.equal(layer, exact.bfloat16())
    assert torch.equal(layer, torch.full((4, 4), 1 - 1 / 128, dtype=torch.bfloat16))
    assert torch.equal(alone, torch.ones(4, 4, dtype=torch.bfloat16))


def test_small_gradients_of_a_batchs_parts_add_up() -> None:
    """1 and seven times 1/512, half of bf16's next number after 1."""
    module = Layered()
    master_weights.keep(module)
    layer = module.layers[0].weight
    for part in (1.0, *[1 / 512] * 7):
        layer.grad = torch.full((4, 4), part, dtype=torch.bfloat16)
        master_weights.take_gradients(module)
    assert torch.equal(master_weights.master(layer).grad, torch.full((4, 4), 1 + 7 / 512))


def test_layers_and_embeddings_are_in_bf16_and_what_is_saved_is_not() -> None:
    """A frozen weight is saved too, and stays exact."""
    module = Layered()
    frozen = module.words.weight.requires_grad_(False)
    nn.init.constant_(frozen, 1 + 1 / 1024)
    master_weights.keep(module)
    half = {name for name, weight in module.named_parameters() if weight.dtype == torch.bfloat16}
    assert half == {"words.weight", "layers.0.weight"}
    assert torch.equal(frozen, torch.ones(3, 4, dtype=torch.bfloat16))
    master_weights.put_back(module)
    assert torch.equal(frozen, torch.full((3, 4), 1 + 1 / 1024))
    assert all(weight.dtype == torch.float32 for weight in module.parameters())
    assert all(master_weights.master(weight) is weight for weight in module.parameters())


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_interrupted_it_ends_as_if_never_interrupted(run: Any, tmp_path: Path, encoder: Path, kind: str) -> None:
    """With dropout, weights in common, and the best of its validations; the model has what only masters have."""
    config = toy.retriever_config if kind == "retriever" else toy.ranker_config
    towers = {"towers": "separate", "share": ["embedder"]} if kind == "retriever" else {}
    model = toy.started(tmp_path / "start", config(encoder, dropout=0.3, **towers))
    losses = HALF["losses"] if kind == "retriever" else [{"function": toy.CROSS_ENTROPY}]
    options = {
        **HALF,
        "losses": losses,
        "kind": kind,
        "updates": 6,
        "batch": 8,
        "log_every": 1,
        "start": model,
        "dev": True,
        "validate_on_dev": {"every": 2, "measure": "loss"},
        "accumulate": 2,
    }
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=3, **options)
    kept = load_file(sorted((tmp_path / "b/checkpoints").glob("update-*"))[-1] / "weights.safetensors")
    assert {value.dtype for value in kept.values()} == {torch.float32}
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")
    tensors = weights(tmp_path / "a")
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    layer = next(value for name, value in tensors.items() if name.endswith("intermediate.dense.weight"))
    assert not torch.equal(layer, layer.bfloat16().float())


def test_it_learns_what_fp32_weights_learn(run: Any, tmp_path: Path) -> None:
    """Up to rounding, at a rate at which most updates are too small for a bf16 weight."""
    options = {
        "losses": [BATCH],
        "precision": "bf16",
        "updates": 40,
        "batch": 8,
        "log_every": 40,
        "learning_rate": 2e-4,
        "warmup": 0.0,
    }
    run("a", **options)
    run("b", **options, weights="bf16")
    a, b = (lines(tmp_path / place)[0]["cross_entropy (batch)"] for place in ("a", "b"))
    assert a != b
    assert a == pytest.approx(b, rel=0.01)


def test_the_next_training_carries_on(run: Any, tmp_path: Path) -> None:
    """From masters and moments."""
    options = {**HALF, "schedule": "constant", "warmup": 0.0, "batch": 24}
    run("a", updates=2, **options)
    before = weights(tmp_path / "a")
    run("b", updates=2, start=tmp_path / "a", carry="all", **options)
    state = load_file(tmp_path / "b/state/optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("/step")} == {4.0}
    assert any(not torch.equal(value, before[name]) for name, value in weights(tmp_path / "b").items())


def test_adapters_stand_on_a_frozen_model_in_bf16(run: Any, tmp_path: Path, encoder: Path) -> None:
    model = toy.started(tmp_path / "adapted", toy.retriever_config(encoder, adapter={"rank": 3}, dropout=0.3))
    options = {**HALF, "updates": 4, "start": model, "learning_rate": 1e-2}
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=2, **options)
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_what_memory_holds_of_a_weight(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 bytes for itself, 4 for its master, 8 for the moments, and of its gradients none after an update; a state that
    waits for the backward pass has 2, where that of fp32 weights has mostly 4."""
    waiting: dict[str, dict[int, int]] = {}
    real_update = loop._update

    def counted(objective: Any, optimizer: Any, config: Any, *rest: Any, **named: Any) -> Any:
        pointers = {weight.data_ptr() for weight in objective.parameters()}
        states = waiting.setdefault(config.weights, {})

        def saved(state: Any) -> Any:
            storage = state.untyped_storage()
            if storage.data_ptr() not in pointers:
                states[storage.data_ptr()] = storage.nbytes()
            return state

        with torch.autograd.graph.saved_tensors_hooks(saved, lambda state: state):
            result = real_update(objective, optimizer, config, *rest, **named)
        half = [weight for weight in objective.parameters() if weight.dtype == torch.bfloat16]
        full = [weight for weight in objective.parameters() if weight.dtype == torch.float32]
        assert bool(half) == (config.weights == "bf16")
        kept = [master_weights.master(weight) for weight in half]
        updated = [weight for group in optimizer.param_groups for weight in group["params"]]
        assert {id(weight) for weight in updated} == {id(weight) for weight in [*kept, *full]}
        numbers = sum(weight.numel() for weight in updated)
        moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
        held = {id(weight): weight for weight in [*half, *kept, *full, *moments]}
        assert sum(map(size, held.values())) == 12 * numbers + 2 * sum(weight.numel() for weight in half)
        assert all(weight.grad is None for weight in [*half, *kept])
        return result

    monkeypatch.setattr(loop, "_update", counted)
    for place, kind in (("a", "fp32"), ("b", "bf16")):
        run(place, updates=1, precision="bf16", weights=kind, losses=[BATCH], batch=8, piece=10_000)
    assert sum(waiting["bf16"].values()) < 0.8 * sum(waiting["fp32"].values())


def size(tensor: Any) -> int:
    """Its bytes."""
    return int(tensor.numel() * tensor.element_size())


OTHER = ["t5", "modernbert", "qwen3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("electra", "mistral"))]


@pytest.mark.parametrize("kind", OTHER)
def test_other_models(run: Any, tmp_path: Path, kind: str) -> None:
    """Also with frozen embeddings, which stay as they were."""
    place = toy.write_encoder(tmp_path / kind, kind, tokenizer=toy.bert_tokenizer())
    options = {"towers": "separate", "pooling": "mean", "freeze": ["embedder"]}
    model = toy.started(tmp_path / "start", toy.retriever_config(place, **options))
    run("b", **{**HALF, "weights": "fp32"}, updates=1, start=model)
    run("a", **HALF, updates=2, start=model, learning_rate=1e-2)
    before, after = weights(model), weights(tmp_path / "a")
    names = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "shared.weight")
    words = [name for name in before if name.endswith(names)]
    assert len(words) == 2
    for name, value in after.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name]) == (name in words) or value.ndim < 2


def test_products_in_fp32_need_weights_in_fp32() -> None:
    with pytest.raises(UserError, match=r"weights: got bf16 with `precision: fp32`"):
        toy.train_config(weights="bf16", precision="fp32")
    assert "weights" not in toy.train_config().model_dump()
