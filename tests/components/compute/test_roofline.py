"""The arithmetic of a model's layers, counted by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from sparring.components.compute.roofline import MatrixProducts
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from tests.support import toy
from tests.support.processors import NEEDS_VNNI

WIDTH, MIDDLE, LAYERS = (toy.SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))


def by_hand(length: int) -> int:
    """Of one text: four products of the width, two with the middle, and attention's two."""
    operations = 4 * WIDTH * WIDTH + 2 * WIDTH * MIDDLE
    return 2 * LAYERS * (length * operations + 2 * length * length * WIDTH)


def test_operations_are_those_of_the_layers(encoder: Path) -> None:
    lengths = np.array([3, 17, 64])
    models = [
        DualEncoder.start(toy.retriever_config(encoder))[0].tower("query"),
        CrossEncoder.start(toy.ranker_config(encoder, pooling="mean"))[0].backbone,
        CrossEncoder.start(toy.ranker_config(encoder, pooling="cls"))[0].backbone,
    ]
    for model in models:
        assert MatrixProducts(model).operations(lengths) == sum(map(by_hand, lengths.tolist()))


def test_the_first_tokens_last_state_takes_less(encoder: Path) -> None:
    """In the last layer: keys and values for each token; everything else, and attention, for one token."""
    model = CrossEncoder.start(toy.ranker_config(encoder, pooling="cls"))[0].base_model
    of_last = lambda n: 2 * (n * 2 * WIDTH**2 + 2 * WIDTH**2 + 2 * WIDTH * MIDDLE + 2 * n * WIDTH)  # noqa: E731
    whole = by_hand(17) * (LAYERS - 1) / LAYERS + of_last(17)
    assert MatrixProducts(model, first_only=True).operations(np.array([17])) == whole


def test_operations_are_those_that_torch_counts(encoder: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = DualEncoder.start(toy.retriever_config(encoder))[0].eval()
    model.towers["shared"].set_attn_implementation("eager")
    ids = torch.full((3, 24), 7)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.towers["shared"](input_ids=ids, attention_mask=torch.ones_like(ids))
    assert MatrixProducts(model.tower("document")).operations(np.full(3, 24)) == counter.get_total_flops()


@pytest.mark.parametrize("adapter", [None, {"rank": 3}, {"rank": 3, "targets": ["query", "dense"]}], ids=str)
def test_operations_of_a_training_are_those_that_torch_counts(encoder: Path, adapter: dict[str, Any] | None) -> None:
    """A frozen weight has no gradient. That of the states that go into the first layer is counted, and not computed
    where all is frozen before: what stands for it here is a trained embedding."""
    from torch.utils.flop_counter import FlopCounterMode

    model = DualEncoder.start(toy.retriever_config(encoder, adapter=adapter))[0].eval()
    tower = model.towers["shared"]
    tower.set_attn_implementation("eager")
    tower.get_input_embeddings().requires_grad_(True)
    ids = torch.full((3, 24), 7)
    with FlopCounterMode(display=False) as counter:
        tower(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.sum().backward()
    assert MatrixProducts(model.tower("document")).training_operations(np.full(3, 24)) == counter.get_total_flops()


def test_the_rate_is_measured_once(encoder: Path) -> None:
    products = MatrixProducts(DualEncoder.start(toy.retriever_config(encoder))[0].tower("query"))
    rate = products.rate(tokens=64, device="cpu", precision="fp32")
    assert rate > 0
    assert products.rate(tokens=64, device="cpu", precision="fp32") == rate
    assert products.rate(tokens=64, device="cpu", precision="bf16") != rate


@NEEDS_VNNI
def test_products_in_int8_have_a_rate_of_their_own(encoder: Path) -> None:
    products = MatrixProducts(DualEncoder.start(toy.retriever_config(encoder))[0].tower("query"))
    rates = {precision: products.rate(tokens=64, device="cpu", precision=precision) for precision in ("fp32", "int8")}
    assert 0 < rates["int8"] != rates["fp32"] > 0


def test_time_taken_by_other_programs_does_not_lower_the_rate(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a busy processor would look slow, and a share of the roofline could exceed 1."""
    products = MatrixProducts(DualEncoder.start(toy.retriever_config(encoder))[0].tower("query"))
    linear, spent = functional.linear, 0.0

    def timed(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        nonlocal spent
        spent += 2 * len(states) * weight.numel() / 1e9
        return linear(states, weight)

    monkeypatch.setattr(functional, "linear", timed)
    monkeypatch.setattr(time, "thread_time", lambda: spent)
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("wall-clock time was used"))
    assert products.rate(tokens=20_008, device="cpu", precision="fp32") == pytest.approx(1e9)
