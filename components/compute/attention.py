"""Attention weights on a CPU, as one matrix product and one softmax.

Torch's own attention works on blocks, to take the softmax while a block is in the cache, and has a library multiply
the blocks. On an AMD EPYC that library is slow at such small products in bf16. Whole products read and write more
memory and are still faster there, for texts of 16 tokens and of 512.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale q k' + mask) for queries (N, H, Q, d) and keys (N, H, L, d): (N, H, Q, L), in their precision.

    The mask is added to the scores and is broadcast to their shape.
    """
    count, heads, queries, size = query.shape
    query, key = query.reshape(count * heads, queries, size), key.reshape(count * heads, -1, size)
    # Scale and mask inside the product, before its result is rounded.
    if mask is None:
        added, beta = query.new_zeros(1, 1, 1), 0
    else:
        # fp32's least number is infinite in bf16, and a row of nothing else (padding in a window) would be no number.
        mask = mask.to(query.dtype).clamp_min(torch.finfo(query.dtype).min)
        added, beta = mask.expand(count, heads, -1, -1).flatten(0, 1), 1
    scores = torch.baddbmm(added, query, key.transpose(1, 2), beta=beta, alpha=scale)
    return _softmax(scores).view(count, heads, queries, -1)


def _softmax(scores: Tensor) -> Tensor:
    """Over the last dimension. Torch's takes rows in bf16 by 32 numbers, and is so slow with what is left of a short
    row that going through fp32 takes a third to nine tenths of the time."""
    if scores.dtype == torch.bfloat16 and scores.shape[-1] % 32 and scores.shape[-1] < 256:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)
