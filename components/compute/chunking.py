"""Encoding of a batch in chunks of texts of similar length.

Chunks need less padding, and the memory use does not grow with the batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.components.compute.gather import of_workers
from sparring.components.data.batches import padded_width, text_lengths, token_batches

_least = 1
_unchunked = False
_in_step = False


@contextmanager
def at_least(chunks: int) -> Iterator[None]:
    """Divide batches into `chunks` or more chunks inside this block, if they have enough texts of similar length."""
    global _least
    _least = chunks
    try:
        yield
    finally:
        _least = 1


@contextmanager
def unchunked() -> Iterator[None]:
    """Encode batches in one pass and without checkpointing inside this block. Tests compare chunks with this."""
    global _unchunked
    _unchunked = True
    try:
        yield
    finally:
        _unchunked = False


@contextmanager
def in_step() -> Iterator[None]:
    """Make all workers divide a batch into equally many chunks inside this block, whatever their shares of it.

    If the layers are sharded over the workers, all workers gather a layer together and need the same number of passes.
    """
    global _in_step
    _in_step = True
    try:
        yield
    finally:
        _in_step = False


def is_unchunked() -> bool:
    """Return True inside an `unchunked` block. Code that divides a batch itself must check this."""
    return _unchunked


def in_chunks(forward: Callable[[Any], Tensor], batch: Any, *, tokens: int, recompute: bool) -> Tensor:
    """Apply `forward` to chunks of at most `tokens` tokens. Return the results in the batch's order.

    A batch is any named tuple of tensors with a `mask` (N, L) that is True at tokens.

    With `recompute`, only a chunk's result is kept, and the chunk runs again in the backward pass with the same
    dropout: gradient caching (Gao et al., 2021). The gradient is exact and needs the memory of one chunk.
    """
    if is_unchunked():
        return forward(batch)
    lengths, device = text_lengths(batch), batch.mask.device
    chunks = chunk_rows(lengths, tokens)
    most = max(of_workers(len(chunks))) if _in_step else len(chunks)
    if most == 1 and not recompute:
        return forward(batch)
    results = [
        checkpointed(forward, take_rows(batch, rows, int(lengths[rows[0]])), recompute=recompute) for rows in chunks
    ]
    for _ in range(most - len(chunks)):  # to keep up with the other workers: with factor 0, and its own random numbers
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            again = take_rows(batch, chunks[-1], int(lengths[chunks[-1][0]]))
            results[-1] = results[-1] + 0 * checkpointed(forward, again, recompute=recompute)
    order = torch.argsort(torch.cat(chunks))
    return torch.cat(results)[order.to(device, non_blocking=True)]


def checkpointed(forward: Callable[..., Tensor], *chunk: Any, recompute: bool) -> Tensor:
    """Apply `forward` to a chunk.

    With `recompute`, keep only the result, and run `forward` again in the backward pass.
    """
    if recompute and torch.is_grad_enabled():
        result: Tensor = checkpoint(forward, *chunk, use_reentrant=False)
        return result
    return forward(*chunk)


def chunk_rows(lengths: Tensor, tokens: int) -> list[Tensor]:
    """Return the rows of each chunk of at most `tokens` tokens, longest texts first."""
    if _least > 1:
        tokens = min(tokens, -(-len(lengths) * int(lengths.max()) // _least))
    return [torch.from_numpy(rows).to(lengths.device) for rows in token_batches(lengths.cpu().numpy(), tokens)]


def take_rows(batch: Any, rows: Tensor, longest: int) -> Any:
    """Take some rows of a batch without unneeded padding. `longest` is their largest number of tokens."""
    width, rows = padded_width(longest), rows.to(batch.mask.device, non_blocking=True)
    parts = [part if part is None else part[rows, :width] if part.ndim > 1 else part[rows] for part in batch]
    return type(batch)(*parts)
