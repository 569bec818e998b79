"""Encoding a batch in pieces of similar length: less padding, and memory that does not grow with the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from components.text import Batch, token_batches

_least = 1


@contextmanager
def cut(pieces: int) -> Iterator[None]:
    """In the block a batch is cut into at least so many pieces, where it has so many texts of similar length."""
    global _least
    _least = pieces
    try:
        yield
    finally:
        _least = 1


def in_chunks(forward: Callable[[Batch], Tensor], batch: Batch, *, tokens: int, recompute: bool) -> Tensor:
    """`forward` over pieces of at most `tokens` tokens, results in the batch's order.

    With `recompute` a piece keeps its result alone and is run again, with the same dropout, when its gradient is
    known: gradient caching (Gao et al. 2021), exact, in the memory of one piece.
    """
    cuts = pieces(batch, tokens)
    if len(cuts) == 1 and not recompute:
        return forward(batch)
    lengths = batch.mask.sum(-1)
    results = []
    for rows in cuts:
        piece = take(batch, rows, int(lengths[rows[0]]))
        if recompute and torch.is_grad_enabled():
            results.append(checkpoint(forward, piece, use_reentrant=False))
        else:
            results.append(forward(piece))
    order = torch.cat(cuts).to(results[0].device)
    return torch.cat(results)[torch.argsort(order)]


def pieces(batch: Batch, tokens: int) -> list[Tensor]:
    """The rows of each piece of at most `tokens` tokens, the longest texts first."""
    tokens = min(tokens, -(-batch.mask.numel() // _least))
    lengths = batch.mask.sum(-1).cpu().numpy()
    return [torch.from_numpy(rows).to(batch.ids.device) for rows in token_batches(lengths, tokens)]


def take(batch: Batch, rows: Tensor, longest: int) -> Batch:
    """Some rows of a batch, cut to their longest length."""
    width = min(batch.ids.shape[1], -(-max(1, longest) // 8) * 8)
    segments = batch.segments[rows, :width] if batch.segments is not None else None
    return Batch(batch.ids[rows, :width], batch.mask[rows, :width], segments)
