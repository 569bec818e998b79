"""Linear layers as products by each library, against torch's own and against products of whole numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparring.components.compute.linear_products import (
    AT_ONCE,
    ZERO,
    ByMkl,
    ByOneDnn,
    eight_bits,
    has_products,
    linear_product,
)
from sparring.components.compute.precision import has_bf16
from tests.support.processors import NEEDS_BF16, NEEDS_VNNI


def layers(*outputs: int, inputs: int = 48) -> list[nn.Linear]:
    torch.manual_seed(3)
    return [nn.Linear(inputs, count) for count in outputs]


def states(count: int = 70, inputs: int = 48) -> torch.Tensor:
    """Rows of several sizes, one of them all zeros."""
    rows = (
        torch.randn(count, inputs, generator=torch.Generator().manual_seed(5)) * torch.logspace(-3, 3, count)[:, None]
    )
    rows[4] = 0
    return rows


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(
    ("precision", "close"),
    [("fp32", 1e-5), pytest.param("bf16", 2e-2, marks=NEEDS_BF16), pytest.param("int8", 3e-2, marks=NEEDS_VNNI)],
)
def test_layers_side_by_side_are_one_product(precision: str, close: float, gelu: bool) -> None:
    parts, rows = layers(32, 64, 8), states() / 100
    with torch.inference_mode():
        products = linear_product(precision, *parts)(rows, gelu=gelu).float()
        wanted = torch.cat([part(rows) for part in parts], 1)
        wanted = functional.gelu(wanted) if gelu else wanted
    assert ((products - wanted).norm(dim=1) <= close * (1 + wanted.norm(dim=1))).all()


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_each_library_gives_the_layers_states(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over more rows than are multiplied together."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    (layer,), rows = layers(32), states(AT_ONCE + 70).clamp(-9, 9)
    product = linear_product("fp32", layer)
    by_mkl = capability == "AVX2" and torch.backends.mkl.is_available()
    assert isinstance(product, ByMkl if by_mkl else ByOneDnn)
    with torch.inference_mode():
        torch.testing.assert_close(product(rows), layer(rows))
        torch.testing.assert_close(product(rows, gelu=True), functional.gelu(layer(rows)))


@NEEDS_VNNI
def test_int8_is_the_product_of_whole_numbers_scaled_back() -> None:
    """Also where 48 products of 127 times 127 are summed, which is more than 16 bits hold."""
    (layer,), rows = layers(64), states()
    rows[7], layer.weight.data[9] = 3.0, -2.0
    numbers, scales = eight_bits(rows)
    weights, of_outputs = eight_bits(layer.weight.detach())
    whole = (numbers.long() - ZERO) @ (weights.long() - ZERO).T
    assert int(whole[7, 9]) == -48 * 127 * 127
    wanted = (whole.double() * scales.double() * of_outputs.double().T + layer.bias.double()).float()
    with torch.inference_mode():
        products = linear_product("int8", layer)(rows).float()
    # The product, its scale and the result are each rounded to bf16, by at most 2**-8 of it.
    loose = 3 * 2**-8 if has_bf16("cpu") else 1e-5
    torch.testing.assert_close(products, wanted, rtol=loose, atol=loose)
    torch.testing.assert_close(products[4], layer.bias.detach(), rtol=loose, atol=loose)


@NEEDS_VNNI
def test_a_row_in_int8_does_not_depend_on_the_rows_beside_it() -> None:
    product, rows = linear_product("int8", *layers(64)), states()
    with torch.inference_mode():
        whole = product(rows)
        assert all(torch.equal(product(rows[i : i + 1])[0], whole[i]) for i in range(len(rows)))


def test_eight_bits_hold_every_row_to_half_a_step() -> None:
    numbers, scales = eight_bits(states())
    assert numbers.dtype == torch.uint8
    back = (numbers.float() - ZERO) * scales
    assert ((back - states()).abs() <= 0.501 * scales).all()
    assert (back[4] == 0).all()
    assert int(numbers.min()) >= ZERO - 127


def test_there_is_no_int8_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx512_f": True})
    assert not has_products("int8")
    assert has_products("fp32")
