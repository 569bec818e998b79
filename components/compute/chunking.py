"""Encoding a batch in chunks of texts of similar length: less padding, and memory that does not grow with the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from components.data.batches import padded_width, token_batches

_least = 1
_unchunked = False


@contextmanager
def at_least(chunks: int) -> Iterator[None]:
    """Inside this block a batch is divided into `chunks` chunks or more, if it has enough texts of similar length."""
    global _least
    _least = chunks
    try:
        yield
    finally:
        _least = 1


@contextmanager
def unchunked() -> Iterator[None]:
    """Inside this block a batch is encoded in one pass and without checkpointing: the reference for tests of chunks."""
    global _unchunked
    _unchunked = True
    try:
        yield
    finally:
        _unchunked = False


def is_unchunked() -> bool:
    """Whether the caller is inside `unchunked`; whoever divides a batch by its own code must ask."""
    return _unchunked


def in_chunks(forward: Callable[[Any], Tensor], batch: Any, *, tokens: int, recompute: bool) -> Tensor:
    """`forward` of a batch in chunks of at most `tokens` tokens, with the results in the batch's order.

    A batch is any tuple of tensors whose `mask` (N, L) says where tokens are.

    With `recompute`, only a chunk's result is kept, and the chunk runs again in the backward pass with the same
    dropout: gradient caching (Gao et al., 2021). The gradient is exact and takes the memory of one chunk.
    """
    if is_unchunked():
        return forward(batch)
    lengths = batch.mask.sum(-1)
    chunks = chunk_rows(lengths, tokens)
    if len(chunks) == 1 and not recompute:
        return forward(batch)
    results = [
        checkpointed(forward, take_rows(batch, rows, int(lengths[rows[0]])), recompute=recompute) for rows in chunks
    ]
    order = torch.cat(chunks).to(results[0].device)
    return torch.cat(results)[torch.argsort(order)]


def checkpointed(forward: Callable[..., Tensor], *chunk: Any, recompute: bool) -> Tensor:
    """`forward` of a chunk. With `recompute`, only the result is kept, and `forward` runs again in the backward
    pass."""
    if recompute and torch.is_grad_enabled():
        result: Tensor = checkpoint(forward, *chunk, use_reentrant=False)
        return result
    return forward(*chunk)


def chunk_rows(lengths: Tensor, tokens: int) -> list[Tensor]:
    """The rows of each chunk of at most `tokens` tokens, the longest texts first."""
    if _least > 1:
        tokens = min(tokens, -(-len(lengths) * int(lengths.max()) // _least))
    return [torch.from_numpy(rows).to(lengths.device) for rows in token_batches(lengths.cpu().numpy(), tokens)]


def take_rows(batch: Any, rows: Tensor, longest: int) -> Any:
    """Some rows of a batch, of which the longest has `longest` tokens, with no more padding than they need."""
    width = padded_width(longest)
    parts = [part if part is None else part[rows, :width] if part.ndim > 1 else part[rows] for part in batch]
    return type(batch)(*parts)
