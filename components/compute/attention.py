"""Attention weights on a CPU, from one matrix product and one softmax.

Torch's own attention divides the matrices into blocks, so that the softmax of a block is computed while the block is in
the cache. A library multiplies the blocks. On an AMD EPYC, that library is slow for such small products in bf16. Whole
products read and write more memory, but are faster on that processor, for texts of 16 tokens and of 512.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(scale q k' + mask) with shape (N, H, Q, L), for queries (N, H, Q, d) and keys (N, H, L, d).

    The weights have the precision of the inputs. The mask is broadcast to the scores' shape and added to them.
    """
    count, heads, queries, size = query.shape
    query, key = query.reshape(count * heads, queries, size), key.reshape(count * heads, -1, size)
    # The product itself applies the scale and the mask, before its result is rounded.
    if mask is None:
        added, beta = query.new_zeros(1, 1, 1), 0
    else:
        # The lowest fp32 number is -inf in bf16, and a row of -inf alone (padding in a window) would give NaN.
        mask = mask.to(query.dtype).clamp_min(torch.finfo(query.dtype).min)
        added, beta = mask.expand(count, heads, -1, -1).flatten(0, 1), 1
    scores = torch.baddbmm(added, query, key.transpose(1, 2), beta=beta, alpha=scale)
    return _softmax(scores).view(count, heads, queries, -1)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension.

    In bf16, torch's softmax reads 32 numbers at a time and is slow with the remainder of a short row. With fp32 in
    between, it takes a third to nine tenths of that time.
    """
    if scores.dtype == torch.bfloat16 and scores.shape[-1] % 32 and scores.shape[-1] < 256:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)
