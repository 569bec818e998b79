"""Encoding a batch in chunks of texts of similar length: less padding, and memory that does not grow with the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.components.data.batches import padded_width, token_batches

_least = 1
_unchunked = False
_in_step = False


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


@contextmanager
def in_step() -> Iterator[None]:
    """Inside this block all workers divide a batch into equally many chunks, whatever each has of it: a layer of which
    each worker has a part is gathered by all of them together."""
    global _in_step
    _in_step = True
    try:
        yield
    finally:
        _in_step = False


def is_unchunked() -> bool:
    """Check whether the caller is inside `unchunked`. Code that divides a batch itself must check this."""
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
    most = _of_all_workers(len(chunks), lengths.device)
    if most == 1 and not recompute:
        return forward(batch)
    results = [
        checkpointed(forward, take_rows(batch, rows, int(lengths[rows[0]])), recompute=recompute) for rows in chunks
    ]
    for _ in range(most - len(chunks)):  # the shortest again, for nothing; its dropout is no one's else
        with torch.random.fork_rng([lengths.device] if lengths.is_cuda else []):
            again = take_rows(batch, chunks[-1], int(lengths[chunks[-1][0]]))
            results[-1] = results[-1] + 0 * checkpointed(forward, again, recompute=recompute)
    order = torch.cat(chunks).to(results[0].device)
    return torch.cat(results)[torch.argsort(order)]


def _of_all_workers(chunks: int, device: torch.device) -> int:
    """Return how many chunks each worker makes: its own number, or inside `in_step` the largest of all workers."""
    if not _in_step:
        return chunks
    most = torch.tensor([chunks], device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def checkpointed(forward: Callable[..., Tensor], *chunk: Any, recompute: bool) -> Tensor:
    """`forward` of a chunk. With `recompute`, only the result is kept, and `forward` runs again in the backward
    pass."""
    if recompute and torch.is_grad_enabled():
        result: Tensor = checkpoint(forward, *chunk, use_reentrant=False)
        return result
    return forward(*chunk)


def chunk_rows(lengths: Tensor, tokens: int) -> list[Tensor]:
    """Return the rows of each chunk of at most `tokens` tokens, the longest texts first."""
    if _least > 1:
        tokens = min(tokens, -(-len(lengths) * int(lengths.max()) // _least))
    return [torch.from_numpy(rows).to(lengths.device) for rows in token_batches(lengths.cpu().numpy(), tokens)]


def take_rows(batch: Any, rows: Tensor, longest: int) -> Any:
    """Take rows of a batch, cut to the padding that they need. The longest of them has `longest` tokens."""
    width = padded_width(longest)
    parts = [part if part is None else part[rows, :width] if part.ndim > 1 else part[rows] for part in batch]
    return type(batch)(*parts)
