"""The weights of attention are a softmax's, and whole products give what torch's own attention gives."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sparring.components.compute.attention import weights
from sparring.components.models import inference

COUNT, HEADS, LENGTH, SIZE = 3, 2, 7, 4
ATTENDED = torch.tensor([LENGTH, 1, 4])  # tokens of each text


def parts(asking: int = LENGTH, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values as a layer has them: views of what one product made."""
    rng = torch.Generator().manual_seed(0)
    projections = torch.randn(COUNT, LENGTH, 3, HEADS, SIZE, generator=rng, dtype=torch.float64).to(dtype)
    query, key, value = projections.permute(2, 0, 3, 1, 4).unbind()
    return query[:, :, :asking], key, value


def looked_at() -> torch.Tensor:
    return (torch.arange(LENGTH) < ATTENDED[:, None])[:, None, None]


@pytest.mark.parametrize("asking", [LENGTH, 1])
@pytest.mark.parametrize("rows", [None, 1, "each"])
def test_weights_are_the_softmax_of_scaled_and_masked_products(asking: int, rows: int | str | None) -> None:
    query, key, _ = parts(asking)
    mask = None if rows is None else torch.where(looked_at(), 0.0, -torch.inf)
    if rows == "each" and mask is not None:
        mask = mask.repeat(1, 1, asking, 1)
    probabilities = weights(query, key, mask, 0.3)
    for text in range(COUNT):
        for head in range(HEADS):
            scores = 0.3 * query[text, head] @ key[text, head].T
            kept = LENGTH if mask is None else int(ATTENDED[text])
            expected = torch.zeros(asking, LENGTH, dtype=torch.float64)
            expected[:, :kept] = scores[:, :kept].softmax(-1)
            torch.testing.assert_close(probabilities[text, head], expected)


@pytest.mark.parametrize("length", [24, 32, 120, 256, 264])
def test_in_bf16_weights_are_the_rounded_softmax(length: int) -> None:
    """Whatever way a row's length takes: a bit of the last place at most."""
    rng = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 2, length, 8, generator=rng).bfloat16() for _ in range(2))
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).double().view(2, 2, length, length)
    probabilities = weights(query, key, None, 1.0)
    assert probabilities.dtype == torch.bfloat16
    torch.testing.assert_close(probabilities.double(), scores.softmax(-1), rtol=2**-8, atol=1e-30)


def test_a_row_that_sees_nothing_is_a_number() -> None:
    """Padding further than a window from any token, under the mask that transformers makes in fp32."""
    query, key, _ = parts(dtype=torch.bfloat16)
    probabilities = weights(query, key, torch.full((1, 1, 1, LENGTH), torch.finfo(torch.float32).min), 1.0)
    assert probabilities.isfinite().all()


@pytest.mark.parametrize("asking", [LENGTH, 1])
@pytest.mark.parametrize("kind", ["none", "booleans", "numbers"])
def test_a_layer_attends_alike_with_amx_and_without(monkeypatch: pytest.MonkeyPatch, asking: int, kind: str) -> None:
    """Both against fp64, with the masks that transformers makes: (N, 1, L, L)."""
    low = parts(asking, torch.bfloat16)
    mask = looked_at().expand(-1, -1, LENGTH, -1)
    attention_mask = {
        "none": None,
        "booleans": mask,
        "numbers": torch.where(mask, 0.0, torch.finfo(torch.float32).min),
    }[kind]
    shown = None if attention_mask is None else mask[:, :, :asking]
    exact = functional.scaled_dot_product_attention(*(part.double() for part in low), attn_mask=shown)
    for amx in (True, False):
        monkeypatch.setattr(inference, "has_amx", lambda amx=amx: amx)
        output = inference.attended(*low, attention_mask)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output.double(), exact, atol=2e-2, rtol=2e-2)
