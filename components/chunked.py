"""Encoding a batch in pieces of similar length: less padding, and memory that does not grow with the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from components.text import Batch, token_batches, whole_eights

_least = 1
_whole = False


@contextmanager
def cut(pieces: int) -> Iterator[None]:
    """In the block a batch is cut into at least so many pieces, where it has so many texts of similar length."""
    global _least
    _least = pieces
    try:
        yield
    finally:
        _least = 1


@contextmanager
def whole() -> Iterator[None]:
    """In the block a batch is encoded at once as it is, and nothing is run again: what pieces are held against."""
    global _whole
    _whole = True
    try:
        yield
    finally:
        _whole = False


def is_whole() -> bool:
    """Whether this is within `whole`, which all must ask that cut a batch."""
    return _whole


def in_chunks(forward: Callable[[Batch], Tensor], batch: Batch, *, tokens: int, recompute: bool) -> Tensor:
    """`forward` over pieces of at most `tokens` tokens, results in the batch's order.

    With `recompute` a piece keeps its result alone and is run again, with the same dropout, when its gradient is
    known: gradient caching (Gao et al. 2021), exact, in the memory of one piece.
    """
    if is_whole():
        return forward(batch)
    lengths = batch.mask.sum(-1)
    cuts = pieces(lengths, tokens)
    if len(cuts) == 1 and not recompute:
        return forward(batch)
    results = [kept(forward, take(batch, rows, int(lengths[rows[0]])), recompute=recompute) for rows in cuts]
    order = torch.cat(cuts).to(results[0].device)
    return torch.cat(results)[torch.argsort(order)]


def kept(forward: Callable[..., Tensor], *piece: Any, recompute: bool) -> Tensor:
    """`forward` of a piece, of which with `recompute` the result alone is kept until its gradient is known."""
    if recompute and torch.is_grad_enabled():
        found: Tensor = checkpoint(forward, *piece, use_reentrant=False)
        return found
    return forward(*piece)


def pieces(lengths: Tensor, tokens: int) -> list[Tensor]:
    """The rows of each piece of at most `tokens` tokens, the longest texts first."""
    if _least > 1:
        tokens = min(tokens, -(-len(lengths) * int(lengths.max()) // _least))
    return [torch.from_numpy(rows).to(lengths.device) for rows in token_batches(lengths.cpu().numpy(), tokens)]


def take(batch: Batch, rows: Tensor, longest: int) -> Batch:
    """Some rows of a batch, cut to their longest length."""
    width = min(batch.ids.shape[1], whole_eights(longest))
    segments = batch.segments[rows, :width] if batch.segments is not None else None
    return Batch(batch.ids[rows, :width], batch.mask[rows, :width], segments)
