"""Layers without padding: the same states and gradients, and products over tokens alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.components.compute.fast_cpu import use_fast_cpu_ops
from sparring.components.compute.packing import packed, unpacked
from sparring.components.models.layers import use_gradient_checkpointing
from tests.support import toy

LENGTHS = torch.tensor([5, 3, 8])
PLACES = (torch.arange(8) < LENGTHS[:, None]).long()
IDS = torch.arange(24).view(3, 8) + 5


def model(toys: Path, kind: str = "bert") -> Any:
    from transformers import AutoModel

    folder = toys / f"packed {kind}"
    return AutoModel.from_pretrained(folder if folder.exists() else toy.write_encoder(folder, kind)).double()


def skipping(encoder: Any) -> Any:
    """A copy that skips padding."""
    fast = copy.deepcopy(encoder)
    use_fast_cpu_ops(fast)
    return fast.train(encoder.training)


def rows_of_products(encoder: Any) -> list[int]:
    """How many rows each feed-forward layer's first product sees, written by each pass."""
    rows: list[int] = []
    for name, part in encoder.named_modules():
        if name.endswith(("intermediate.dense", "ffn.lin1")):
            part.register_forward_hook(lambda _, given, __: rows.append(given[0][..., 0].numel()))
    return rows


def states(encoder: Any, places: Tensor = PLACES, **asked: Any) -> Any:
    return encoder(input_ids=IDS[: len(places)], attention_mask=places, **asked)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_see_tokens_alone_and_states_and_gradients_stay(toys: Path, kind: str, checkpointing: bool) -> None:
    plain = model(toys, kind).train()
    for part in plain.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    fast = skipping(plain)
    if checkpointing:
        use_gradient_checkpointing(fast)
    rows = rows_of_products(fast)
    weights = torch.randn(3, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted, actual = (states(encoder).last_hidden_state * PLACES[..., None] for encoder in (plain, fast))
    torch.testing.assert_close(actual, wanted)
    for result in (wanted, actual):
        (result * weights).sum().backward()
    assert set(rows) == {int(LENGTHS.sum())}
    gradients = [
        {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None} for encoder in (plain, fast)
    ]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-9, rtol=1e-7, msg=name)


def test_padding_comes_out_as_zeros_wherever_it_is(toys: Path) -> None:
    """On the left, on the right, between tokens."""
    places = torch.stack([PLACES[0], PLACES[1].flip(0), torch.tensor([1, 0, 1, 1, 0, 1, 1, 1])])
    plain = model(toys).eval()
    fast = skipping(plain)
    with torch.no_grad():
        actual, wanted = states(fast, places).last_hidden_state, states(plain, places).last_hidden_state
    torch.testing.assert_close(actual, wanted * places[..., None])


@pytest.mark.parametrize(
    ("places", "asked"),
    [(PLACES, {"output_hidden_states": True}), (PLACES[:1], {}), (torch.ones_like(PLACES), {})],
    ids=["hidden states are asked for", "one text", "no padding"],
)
def test_what_is_not_packed_stays_as_it_was(toys: Path, places: Tensor, asked: dict[str, Any]) -> None:
    plain = model(toys).eval()
    fast = skipping(plain)
    rows = rows_of_products(fast)
    with torch.no_grad():
        actual, wanted = states(fast, places, **asked), states(plain, places, **asked)
    assert set(rows) == {places.numel()}
    torch.testing.assert_close(actual.last_hidden_state, wanted.last_hidden_state)
    for layer, expected in zip(actual.hidden_states or (), wanted.hidden_states or (), strict=True):
        torch.testing.assert_close(layer, expected)


def test_little_padding_is_computed_along(toys: Path) -> None:
    """Moving the tokens would take longer than the padding does."""
    places, ids = torch.ones(8, 8, dtype=torch.long), torch.arange(64).view(8, 8) % 25 + 5
    places[0, -1] = 0  # 1 of 64 places, then 2
    fast = skipping(model(toys).eval())
    rows = rows_of_products(fast)
    for more in (0, 1):
        places[1, len(places) - more :] = 0
        fast(input_ids=ids, attention_mask=places)
    assert rows == [64, 64, 62, 62]


def test_a_decoder_is_not_packed() -> None:
    """What its first token sees is not what the others see."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    decoder = BertModel(BertConfig(vocab_size=60, is_decoder=True, **sizes)).eval()
    fast = skipping(decoder)
    with torch.no_grad():
        actual, wanted = states(fast).last_hidden_state, states(decoder).last_hidden_state
    torch.testing.assert_close(actual * PLACES[..., None], wanted * PLACES[..., None])


def test_unpacking_undoes_packing() -> None:
    rows = torch.arange(48.0).view(3, 8, 2)
    mask = torch.zeros(3, 1, 8, 8).masked_fill(PLACES[:, None, None] == 0, torch.finfo(torch.float32).min)
    tokens = packed(rows, mask)
    assert tokens.shape == (1, 16, 2)
    assert torch.equal(unpacked(tokens, mask), rows * PLACES[..., None])
