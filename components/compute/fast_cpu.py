"""Attention and dropout for training on a CPU, where torch's own spend more time than the matrix products.

Torch draws the numbers of a dropout one after another with a generator made for quality, takes the softmax in fp32
between products in bf16, and keeps all of that for the backward pass: half of a training step of a small encoder.
Here a dropout takes 16 random bits a number from a fast generator, seeded by torch's own, so that a seed still fixes
everything and a pass that is run again for its gradient drops the same. Attention keeps its weights in the precision of
its inputs, and its backward pass goes without the softmax's: the sum that this needs is that of a row's output and
gradient (Dao et al. 2022, FlashAttention, section 3.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from components import attention

NAME = "sparring_cpu_training"
BITS = 16


def quicken(model: nn.Module) -> None:
    """Give a model's attention and dropouts the forms of this module; where attention cannot be chosen, plain ones."""
    module: Any
    for module in model.modules():
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation(NAME if module._supports_attention_backend else "eager")
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))


def kept(shape: torch.Size, p: float) -> Tensor:
    """False with probability `p` (to 1 in 65,536); the next of torch's random numbers decides where."""
    count = int(np.prod(shape))
    words = np.random.SFC64(int(torch.randint(2**62, ()))).random_raw(-(-count * BITS // 64))
    least = round(p * 2**BITS) - 2 ** (BITS - 1)  # as a signed number, which is what torch compares
    return torch.from_numpy(words.view(np.int16)[:count]).ge(least).view(shape)


def either(which: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    """One of two numbers at each place."""
    numbers = torch.tensor([yes, no], dtype=dtype)
    return torch.where(which, numbers[0], numbers[1])


class Dropout(nn.Dropout):
    """`nn.Dropout` with faster random numbers."""

    def forward(self, states: Tensor) -> Tensor:
        """The states with some of them 0 and the others larger for it."""
        if not self.training or not self.p:
            return states
        return states * either(kept(states.shape, self.p), 1 / (1 - self.p), 0, states.dtype)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, dropout: float = 0.0, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers asks for it: (N, H, L, d) each, and an additive mask, to (N, L, H, d)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found: Tensor = _Attention.apply(query, key, value, attention_mask, scale, dropout)
    return found.transpose(1, 2), None


class _Attention(torch.autograd.Function):
    """Whatever scales all weights of a row scales something smaller instead: an output, a gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
            weights = attention.weights(query, key, mask, scale)
            keep = either(kept(weights.shape, dropout), 1, 0, weights.dtype) if dropout else None
            found = torch.matmul(weights if keep is None else weights * keep, value)
            found.mul_(1 / (1 - dropout))
        ctx.save_for_backward(query, key, value, weights, keep, found)
        ctx.scale, ctx.dropout = scale, dropout
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep, found = ctx.saved_tensors
        gradient = gradient.to(value.dtype)
        of_rows = (gradient * found).sum(-1, keepdim=True)
        gradient = (gradient * (1 / (1 - ctx.dropout))).contiguous()
        used, of_scores = weights, torch.matmul(gradient, value.transpose(-1, -2))
        if keep is not None:
            used = weights * keep
            of_scores.mul_(keep)
        of_value = torch.matmul(used.transpose(-1, -2), gradient)
        of_scores.sub_(of_rows).mul_(weights)
        of_query = torch.matmul(of_scores, key).mul_(ctx.scale)
        of_key = torch.matmul(of_scores.transpose(-1, -2), query).mul_(ctx.scale)
        return of_query, of_key, of_value, None, None, None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)
