"""Padded batches of texts. They are built from token ids and moved to a device. Many texts are split into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    """Padded texts, as inputs of a model."""

    ids: Tensor
    """Token ids, including special tokens and padding: (N, L)."""
    mask: Tensor
    """1 for a token, 0 for padding: (N, L)."""
    segments: Tensor | None = None
    """Segment (token type) ids: (N, L). If None, the model does not use segments."""


B = TypeVar("B", bound=tuple)


def to_device(batch: B, device: Any) -> B:
    """Move every tensor of a tuple to the device. The tuple may also contain None and nested tuples."""
    moved = _each(batch, lambda part: part.to(device, non_blocking=True))
    mask: Any = getattr(moved, "mask", None)
    if mask is not None:
        mask.lengths = text_lengths(batch)
    return moved


def pinned(batch: B) -> B:
    """Copy every tensor of a tuple to memory from which a GPU reads while the CPU goes on."""
    return _each(batch, lambda part: part.pin_memory())


def _each(batch: B, function: Callable[[Any], Any]) -> B:
    parts: list[Any] = [
        _each(part, function) if isinstance(part, tuple) else function(part) if part is not None else None
        for part in batch
    ]
    return type(batch)(*parts)


def text_lengths(batch: Any) -> Tensor:
    """Return the number of tokens of each text of a batch, in CPU memory: (N,). Padding does not count.

    `to_device` notes the numbers with the mask. To read them from a GPU would wait for all work that it has to do.
    """
    lengths: Tensor | None = getattr(batch.mask, "lengths", None)
    return batch.mask.sum(-1).cpu() if lengths is None else lengths


class Part(NamedTuple):
    """A part of each of N sequences. In row i it is `values[starts[i] : starts[i] + lengths[i]]`."""

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    segment: int | list[int] = 0
    """Segment id of the part's tokens. It can be a list, one per token, if the part is equal in every row."""

    @classmethod
    def same(cls, tokens: list[int], count: int, segment: int | list[int] = 0) -> Part:
        """Repeat the same tokens in each of `count` sequences."""
        return cls(np.asarray(tokens, np.int64), np.zeros(count, np.int64), np.full(count, len(tokens)), segment)


def concatenate(parts: list[Part], padding: int, *, segments: bool) -> Batch:
    """Concatenate each row's parts. Rows are padded with the token `padding` to the longest row."""
    import torch

    lengths = np.sum([part.lengths for part in parts], axis=0)
    width = padded_width(int(lengths.max(initial=0)))
    ids = np.full((len(lengths), width), padding, np.int64)
    types = np.zeros_like(ids) if segments else None
    start = np.arange(len(lengths)) * width
    for part in parts:
        positions = _positions(start, part.lengths)
        ids.reshape(-1)[positions] = part.values[_positions(part.starts, part.lengths)]
        if types is not None:
            types.reshape(-1)[positions] = np.resize(part.segment, len(positions))
        start = start + part.lengths
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return Batch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(types) if types is not None else None)


def _positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return every position of the runs that start at `starts`, one run after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def padded_width(length: int) -> int:
    """Return the width of a batch whose longest text has `length` tokens: the next multiple of 8, which is faster."""
    return -(-max(1, length) // 8) * 8


def token_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Divide the positions of `lengths` into batches of similar length, each of at most `max_tokens` with padding.

    The longest texts come first, so that a batch that is too large for memory fails at once. Texts of equal length keep
    their order. A text longer than `max_tokens` is a batch by itself.

    >>> [batch.tolist() for batch in token_batches(np.array([5, 9, 5, 5]), 16)]
    [[1], [0, 2], [3]]
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches, start = [], 0
    while start < len(order):
        width = padded_width(int(lengths[order[start]]))
        count = max(1, max_tokens // width)
        batches.append(order[start : start + count])
        start += count
    return batches
