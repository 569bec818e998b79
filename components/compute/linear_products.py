"""Linear layers on a CPU, with the fastest library for the processor.

oneDNN lays the weights out once, adds the biases and applies the activation within the product. Torch offers these
products to its compiler. This module calls them directly. In fp32 on a processor without AVX-512, MKL is faster: on an
AMD EPYC with AVX2 it reaches 180 GFLOP/s on two cores, oneDNN 160, and oneDNN with a GELU 108.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from sparring.components.compute.precision import DTYPES, has_bf16, has_int8

PACKED_FOR = 4_096
"""Number of rows that weights are laid out for. Other numbers of rows give the same results."""

AT_ONCE = 512
"""Number of rows that are multiplied together if something follows the product. So many stay in the cache meanwhile."""

ZERO = 128
"""Unsigned 8-bit number that represents 0."""


class LinearProduct(Protocol):
    """Linear layers of the same inputs, as one product with their outputs side by side."""

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply rows (N, in), add the biases and, if `gelu`, apply a GELU. Return (N, out)."""


def has_products(precision: str) -> bool:
    """Return True if torch has oneDNN and the processor has the instructions for products in this precision."""
    if not torch.backends.mkldnn.is_available():
        return False
    if precision == "int8":
        return has_int8("cpu")
    return precision == "fp32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear_product(precision: str, *parts: nn.Linear) -> LinearProduct:
    """Return a product in `fp32`, `bf16` or `int8` for linear layers of the same inputs, with outputs side by side."""
    weight = torch.cat([part.weight for part in parts]).detach()
    bias = torch.cat([part.bias for part in parts]).detach().float()  # added before the result is rounded
    if precision == "int8":
        return Rounded(weight, bias)
    if precision == "fp32" and torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2":
        return ByMkl(weight, bias)
    return ByOneDnn(weight, bias, DTYPES[precision])


class ByMkl:
    """Matrix products in fp32 by MKL, which torch calls."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self._bias = weight.float().T.contiguous(), bias

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply rows (N, in) in fp32 and, if `gelu`, apply an exact GELU. Return (N, out)."""
        if not gelu:
            return torch.addmm(self._bias, rows, self._weight)
        result = torch.empty((len(rows), len(self._bias)))
        for some, into in zip(rows.split(AT_ONCE), result.split(AT_ONCE), strict=True):
            torch.addmm(self._bias, some, self._weight, out=into)
            torch.ops.aten.gelu_(into)
        return result


class ByOneDnn:
    """Matrix products without quantisation, in fp32 or bf16."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self._dtype, self._bias = dtype, bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), PACKED_FOR)

    def __call__(self, rows: Tensor, *, gelu: bool = False) -> Tensor:
        """Multiply rows (N, in) in this precision and, if `gelu`, apply an exact GELU. Return (N, out)."""
        activation, approximation = ("gelu", "none") if gelu else ("none", "")  # "none": not the approximation by tanh
        return torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._weight, self._bias, activation, [], approximation
        )


class Rounded:
    """Products in 8 bits, with a scale for each row and one for each output.

    The outputs are in bf16, or in fp32 if the processor has no products in bf16. A row's scale follows from its largest
    number, so that a text's vector does not depend on the other texts of its batch. oneDNN expects unsigned states and
    a single scale. Therefore 128 is added to the rows, and the row's scale is applied after the product.
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
        """Multiply rows (N, in), add the biases and, if `gelu`, apply a GELU. Return (N, out) in `dtype`."""
        result = torch.empty((len(rows), len(self._zeros)), dtype=self.dtype)
        for some, into in zip(rows.split(AT_ONCE), result.split(AT_ONCE), strict=True):
            rounded, scales = eight_bits(some)
            torch.addcmul(self._bias, self.product(rounded), scales.to(self.dtype), out=into)
            if gelu:
                torch.ops.aten.gelu_(into)
        return result

    def product(self, rows: Tensor) -> Tensor:
        """Multiply quantised rows (N, in). Return (N, out) without rescaling and without bias."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, self._weight, self._scales, self._zeros, None, 1.0, 0, self.dtype, "none", [], ""
        )
        return result


def eight_bits(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows (N, d) to unsigned 8 bits, `ZERO + rows / scales`. Return them with their scales (N, 1).

    A row of zeros stays zero.
    """
    scales = rows.abs().amax(-1, keepdim=True).float().clamp_min_(1e-30).div_(127)
    return (rows / scales).add_(ZERO + 0.5).to(torch.uint8), scales
