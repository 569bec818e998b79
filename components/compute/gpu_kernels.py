"""What makes a training fast on a GPU: the attention that a model has, and compiled layers.

The check before the first update compares the gradient that they give with that of the plain way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

COMPILED: dict[str, Any] = {"dynamic": True, "options": {"fallback_random": True}}
"""One program for batches of all shapes, with the random numbers that layers draw when they are not compiled."""


def attention_of(model: Any, *, precision: str, flash: bool) -> str:
    """transformers' name of the fastest attention that a model has: FlashAttention, which needs half precision and,
    `flash`, its package; torch's own; or the plain one."""
    if flash and precision == "bf16" and model._supports_flash_attn:
        return "flash_attention_2"
    return "sdpa" if model._supports_sdpa else "eager"


def use_gpu_attention(module: nn.Module, *, precision: str) -> None:
    """Give every model inside a module the fastest attention that it has here."""
    flash = is_flash_attn_2_available()
    for model in module.modules():
        if isinstance(model, PreTrainedModel):
            model.set_attn_implementation(attention_of(model, precision=precision, flash=flash))


def compile_layers(layers: Iterable[nn.Module], **options: Any) -> None:
    """Compile each layer in its place: all layers of one shape share a program, which a few seconds make."""
    for layer in layers:
        layer.compile(**{**COMPILED, **options})
