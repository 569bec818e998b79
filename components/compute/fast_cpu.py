"""Fast attention, dropout and token embeddings for training on a CPU.

Torch draws a dropout's random numbers one after another from a slow generator. It computes the softmax in fp32 between
products in bf16, and stores all of that for the backward pass. This took half of the time of an update of a small
encoder.

The dropout in this module needs 16 random bits for each number, from a fast generator. Torch's generator seeds it, so a
seed still determines every result, and a recomputed pass drops the same numbers. The attention keeps its weights in the
precision of its inputs. Its backward pass does without the softmax's backward pass: the sum needed there is the product
of a row's output and gradient (Dao et al., 2022, FlashAttention, section 3.1).

For the gradient of the token embeddings, a pass changes only its tokens' rows. Torch makes a new gradient of the whole
vocabulary for each pass, nearly all of it 0. With 250,000 tokens this took a sixth of the time of an update of six
layers. With 30,000 tokens it took a twentieth of an update of two layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from sparring.components.compute import attention
from sparring.components.compute.packing import is_packed, pack_layers, packed, unpacked

NAME = "sparring_cpu_training"
BITS = 16

LEAST_ROWS = 4_096
"""Smallest number of rows that an embedding is replaced for. With fewer, torch's whole gradient is as fast."""


def use_fast_cpu_ops(model: nn.Module) -> None:
    """Give a model the attention, dropouts and large embeddings of this module, and make its layers skip padding.

    If the attention cannot be replaced, use the plain ("eager") one of transformers, without skipping padding.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "set_attn_implementation"):
            plain = _is_plain(module)
            module.set_attn_implementation(NAME if plain else "eager")
            if plain:
                pack_layers(module)
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
            if type(child) is nn.Embedding and child.num_embeddings >= LEAST_ROWS and child.max_norm is None:
                setattr(module, name, Embedding(child))


def _is_plain(model: Any) -> bool:
    """Return True if attention is a plain softmax of products: not capped (Gemma 2) and without sinks (gpt-oss)."""
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    return bool(model._supports_attention_backend) and not capped and not sinks


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype) -> Tensor:
    """Draw numbers that are 0 with probability `p` (rounded to 1/65,536), else 1. Torch's generator seeds them."""
    count = int(np.prod(shape))
    words = np.random.SFC64(int(torch.randint(2**62, ()))).random_raw(-(-count * BITS // 64))
    least = round(p * 2**BITS) - 2 ** (BITS - 1)  # torch compares the bits as signed numbers
    numbers = torch.from_numpy(words.view(np.int16)[:count]).view(shape)
    # Writing the comparison's result as numbers is five times as fast as converting a mask of bools.
    return torch.ge(numbers, least, out=torch.empty(shape, dtype=dtype))


class Dropout(nn.Dropout):
    """`nn.Dropout` with faster random numbers."""

    def forward(self, states: Tensor) -> Tensor:
        """Set some states to 0, and scale up the rest to keep the mean."""
        if not self.training or not self.p:
            return states
        return states * keep_mask(states.shape, self.p, states.dtype).mul_(1 / (1 - self.p))


class Embedding(nn.Embedding):
    """`nn.Embedding` with a gradient in which a pass changes only its tokens' rows.

    Updates share the gradient's memory, so a caller that needs a gradient after `zero_grad` must copy it.
    """

    def __init__(self, original: nn.Embedding) -> None:
        with torch.device("meta"):
            super().__init__(original.num_embeddings, original.embedding_dim, original.padding_idx)
        self.weight = original.weight  # a head may share it
        self.train(original.training)
        self._gradient: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """Return the states (..., h) of tokens (...)."""
        weight = self.weight
        if not torch.is_grad_enabled() or not weight.requires_grad or weight.dtype == torch.bfloat16:
            return super().forward(ids)  # torch cannot add two sparse gradients in bf16
        if weight.grad is None:
            if self._gradient is None:
                self._gradient = torch.zeros_like(weight)
            weight.grad = self._gradient.zero_()
        return functional.embedding(ids, weight, self.padding_idx, sparse=True)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention through the interface of transformers.

    The inputs have the shape (N, H, L, d), though keys and values may have fewer heads, and the mask is additive. The
    output has the shape (N, L, H, d). Packed inputs have the shape (1, H, T, d) and an output (1, T, H, d).
    """
    if attention_mask is not None and is_packed(query, attention_mask):
        query, key, value = (
            unpacked(part.transpose(1, 2), attention_mask).transpose(1, 2) for part in (query, key, value)
        )
        rows = attend(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout)[0]
        return packed(rows, attention_mask), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms of queries and keys (Qwen3) return fp32 for bf16
    if (shared := query.shape[1] // key.shape[1]) > 1:  # heads that share keys and values (grouped-query attention)
        key, value = (part.repeat_interleave(shared, 1) for part in (key, value))
    output: Tensor = _Attention.apply(query, key, value, attention_mask, scale, dropout)
    return output.transpose(1, 2), None


class _Attention(torch.autograd.Function):
    """Attention with dropout.

    A factor common to all weights of a row is applied to the output or the gradient, because these are smaller.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
            weights = attention.weights(query, key, mask, scale)
            keep = keep_mask(weights.shape, dropout, weights.dtype) if dropout else None
            output = torch.matmul(weights if keep is None else weights * keep, value)
            output.mul_(1 / (1 - dropout))
        ctx.save_for_backward(query, key, value, weights, keep, output)
        ctx.scale, ctx.dropout = scale, dropout
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep, output = ctx.saved_tensors
        gradient = gradient.to(value.dtype)
        row_sums = (gradient * output).sum(-1, keepdim=True)
        gradient = (gradient * (1 / (1 - ctx.dropout))).contiguous()
        used, d_scores = weights, torch.matmul(gradient, value.transpose(-1, -2))
        if keep is not None:
            used = weights * keep
            d_scores.mul_(keep)
        d_value = torch.matmul(used.transpose(-1, -2), gradient)
        d_scores.sub_(row_sums.expand_as(d_scores).contiguous()).mul_(weights)  # a copy is faster than broadcasting
        d_query = torch.matmul(d_scores, key).mul_(ctx.scale)
        d_key = torch.matmul(d_scores.transpose(-1, -2), query).mul_(ctx.scale)
        return d_query, d_key, d_value, None, None, None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, eager_mask)
