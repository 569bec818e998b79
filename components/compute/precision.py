"""The precision of matrix products: what is asked for, and what this machine computes them in.

`bf16` asks for products in bf16 where a processor has instructions for them. One without them converts every number
there and back, and takes several times as long as in fp32 (an Intel Xeon with AVX-512 alone: 29 against 137 billion
operations a second of a core). There products are in fp32, which rounds less.

`int8`, which only models that are asked can have, is computed where a processor has VNNI, and as `bf16` elsewhere:
without VNNI oneDNN's sums of products in 8 bits overflow.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""Of the weights that are kept for products."""


def has_bf16(device: str) -> bool:
    """Check whether a kind of device multiplies bf16 itself. On other architectures than x86, trust torch's report."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return has.get("architecture") != "x86_64" or bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def has_int8(device: str) -> bool:
    """Check whether a kind of device multiplies 8-bit numbers and sums them in 32 bits: x86 with VNNI."""
    has = torch.cpu.get_capabilities()
    return device == "cpu" and bool(has.get("avx512_vnni") or has.get("avx_vnni"))


def computed(requested: str, device: str) -> str:
    """Return the precision in which a device computes products when `requested` is requested."""
    if requested == "int8" and has_int8(device):
        return requested
    return "bf16" if requested != "fp32" and has_bf16(device) else "fp32"


def autocast(precision: str, device: str, *, keep: bool = True) -> Any:
    """Inside this block a kind of device computes products in this precision, which `computed` gives. `keep` keeps the
    weights that were rounded for a pass for the next ones: quick, but all passes' gradients are then summed in bf16."""
    return torch.autocast(device, torch.bfloat16, cache_enabled=keep) if precision == "bf16" else nullcontext()
