"""The weights of attention on a CPU.

Torch's own attention multiplies a block of queries with a block of keys at a time, to take the softmax while the
block is in the cache, and leaves the blocks to a library that on an AMD EPYC is slow at such small products in bf16.
Whole products and one softmax read and write more and are faster there, for texts of 16 tokens as for those of 512.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale q k' + mask) of queries (N, H, Q, d) and keys (N, H, L, d): (N, H, Q, L), in their precision.

    The mask is one that is added, and can be broadcast.
    """
    count, heads, asking, size = query.shape
    query, key = query.reshape(count * heads, asking, size), key.reshape(count * heads, -1, size)
    # Scaled and masked inside the product, before its result is rounded.
    if mask is None:
        added, beta = query.new_zeros(1, 1, 1), 0
    else:
        added, beta = mask.to(query.dtype).expand(count, heads, -1, -1).flatten(0, 1), 1
    scores = torch.baddbmm(added, query, key.transpose(1, 2), beta=beta, alpha=scale)
    return torch.softmax(scores, -1).view(count, heads, asking, -1)
