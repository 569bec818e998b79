"""Fast attention and compiled layers for training on a GPU.

The check before the first update compares their gradient with that of plain attention and layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

COMPILED: dict[str, Any] = {"dynamic": True, "options": {"fallback_random": True}}
"""Options of `compile`: one program for batches of all shapes, with the random numbers of layers that are not compiled.
"""


def attention_of(model: Any, *, precision: str, flash: bool) -> str:
    """Return the name in transformers of the fastest attention that a model supports.

    It is FlashAttention, which needs half precision and its package (`flash`), else torch's own, else the plain one.
    """
    if flash and precision == "bf16" and model._supports_flash_attn:
        return "flash_attention_2"
    return "sdpa" if model._supports_sdpa else "eager"


def use_gpu_attention(module: nn.Module, *, precision: str) -> None:
    """Give every model inside a module the fastest attention that it supports on this machine."""
    flash = is_flash_attn_2_available()
    for model in module.modules():
        if isinstance(model, PreTrainedModel):
            model.set_attn_implementation(attention_of(model, precision=precision, flash=flash))


def compile_layers(layers: Iterable[nn.Module], **options: Any) -> None:
    """Compile each layer in place. Layers of the same shape share a program, which takes a few seconds to compile."""
    for layer in layers:
        layer.compile(**{**COMPILED, **options})
