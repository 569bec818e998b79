"""Choice of the precision in which a machine computes matrix products.

`bf16` computes products in bf16 if the processor has instructions for them. A processor without them would convert
every number to fp32 and back, which is several times as slow as fp32: on an Intel Xeon with only AVX-512, 29 instead of
137 billion operations a second and core. Such a processor computes in fp32, which rounds less.

`int8` is only possible for models at inference. If the processor has no VNNI, it is the same as `bf16`, because without
VNNI oneDNN's sums of 8-bit products overflow.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""Type of the weights in each precision. The precision `int8` has its own quantised weights."""


def has_bf16(device: str) -> bool:
    """Return True if a kind of device has instructions for bf16 products. Assume so for CPUs other than x86."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return has.get("architecture") != "x86_64" or bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def has_int8(device: str) -> bool:
    """Return True if a kind of device multiplies 8-bit numbers and sums them in 32 bits: x86 with VNNI."""
    has = torch.cpu.get_capabilities()
    return device == "cpu" and bool(has.get("avx512_vnni") or has.get("avx_vnni"))


def computed(requested: str, device: str) -> str:
    """Return the precision in which a device computes products if a config requests `requested`."""
    if requested == "int8" and has_int8(device):
        return requested
    return "bf16" if requested != "fp32" and has_bf16(device) else "fp32"


def autocast(precision: str, device: str, *, keep: bool = True) -> Any:
    """Compute products inside this block in a precision that `computed` returned.

    With `keep`, passes share the rounded weights. This is fast, but sums the gradients of all passes in bf16.
    """
    return torch.autocast(device, torch.bfloat16, cache_enabled=keep) if precision == "bf16" else nullcontext()
