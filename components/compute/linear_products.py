"""Linear layers as oneDNN's products on a CPU: their weights laid out once, and biases and activations in the product.

torch offers these products to its compiler; here they are asked for directly.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from sparring.components.compute.precision import DTYPES, has_bf16, has_int8

PACKED_FOR = 4_096
"""Rows that weights are laid out for; other numbers of rows give the same results."""

AT_ONCE = 512
"""Rows that are rounded, multiplied and scaled back together: as many as stay in a core's cache meanwhile."""

ZERO = 128
"""What stands for 0 in 8 bits without a sign."""


class LinearProduct(Protocol):
    """Linear layers side by side as one product."""

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply (N, in) rows, and add the biases: (N, out), with a GELU if `gelu`."""


def has_products(precision: str) -> bool:
    """Check whether torch has oneDNN, and the processor has the instructions for products in this precision."""
    if not torch.backends.mkldnn.is_available():
        return False
    if precision == "int8":
        return has_int8("cpu")
    return precision == "fp32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear_product(precision: str, *parts: nn.Linear) -> LinearProduct:
    """Linear layers of the same inputs, side by side, with products in `fp32`, `bf16` or `int8`."""
    weight = torch.cat([part.weight for part in parts]).detach()
    bias = torch.cat([part.bias for part in parts]).detach().float()  # added before the result is rounded
    return Rounded(weight, bias) if precision == "int8" else Plain(weight, bias, DTYPES[precision])


class Plain:
    """Products in fp32 or bf16."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self._dtype, self._bias = dtype, bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), PACKED_FOR)

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply (N, in) rows in this precision: (N, out), with an exact GELU if `gelu`."""
        activation, approximation = ("gelu", "none") if gelu else ("none", "")  # "none": not the approximation by tanh
        return torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._weight, self._bias, activation, [], approximation
        )


class Rounded:
    """Products in 8 bits, with a scale for each row and one for each output; what comes out is in bf16, or in fp32
    where the processor has no products in bf16.

    A row's scale is its largest number's, so that a text's vector does not depend on the texts beside it. oneDNN takes
    states without a sign, and one scale for all: rows are moved by 128, and scaled back after the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.dtype = torch.bfloat16 if has_bf16("cpu") else torch.float32
        self._bias = bias.to(self.dtype)
        rounded, scales = eight_bits(weight)
        self._scales = scales[:, 0]
        whole = (rounded.int() - ZERO).to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(whole, [PACKED_FOR, weight.shape[1]])
        self._zeros = torch.zeros(len(weight), dtype=torch.long)

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply (N, in) rows: (N, out) in `dtype`."""
        result = torch.empty((len(rows), len(self._zeros)), dtype=self.dtype)
        for some, into in zip(rows.split(AT_ONCE), result.split(AT_ONCE), strict=True):
            rounded, scales = eight_bits(some)
            torch.addcmul(self._bias, self.product(rounded), scales.to(self.dtype), out=into)
            if gelu:
                torch.ops.aten.gelu_(into)
        return result

    def product(self, rows: Tensor) -> Tensor:
        """Multiply quantised (N, in) rows: (N, out), without rescaling and without bias."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, self._weight, self._scales, self._zeros, None, 1.0, 0, self.dtype, "none", [], ""
        )
        return result


def eight_bits(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise (N, d) rows to unsigned 8 bits, `ZERO + rows / scales`, and return them with their scales (N, 1). A
    row of zeros stays zero.
    """
    scales = rows.abs().amax(-1, keepdim=True).float().clamp_min_(1e-30).div_(127)
    return (rows / scales).add_(ZERO + 0.5).to(torch.uint8), scales
