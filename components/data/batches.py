"""Padded batches of texts: building one out of token ids, moving it to a device, dividing many texts into batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    """Padded texts as a model takes them."""

    ids: Tensor
    """(N, L) token ids, special tokens and padding included."""
    mask: Tensor
    """(N, L) 1 for a token, 0 for padding."""
    segments: Tensor | None = None
    """(N, L) segment (token type) ids, where the model takes them."""


B = TypeVar("B", bound=tuple)


def to_device(batch: B, device: Any) -> B:
    """Move every tensor of a tuple to the device. The tuple may hold None and such tuples too."""
    moved: list[Any] = [
        to_device(part, device)
        if isinstance(part, tuple)
        else part.to(device, non_blocking=True)
        if part is not None
        else None
        for part in batch
    ]
    return type(batch)(*moved)


class Part(NamedTuple):
    """One part of each of N sequences: row i takes `values[starts[i] : starts[i] + lengths[i]]`."""

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    segment: int | list[int] = 0
    """The segment id of all its tokens, or a list with one for each token of a part that is the same in every row."""

    @classmethod
    def same(cls, tokens: list[int], count: int, segment: int | list[int] = 0) -> Part:
        """Repeat the same tokens in each of `count` sequences."""
        return cls(np.asarray(tokens, np.int64), np.zeros(count, np.int64), np.full(count, len(tokens)), segment)


def concatenate(parts: list[Part], padding: int, *, segments: bool) -> Batch:
    """Concatenate each row's parts, padded with the token `padding` to the longest row."""
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
    """Return every position of the runs that begin at `starts`, run after run."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def padded_width(length: int) -> int:
    """Return the width of a batch whose longest text has `length` tokens: the next multiple of 8, for the hardware."""
    return -(-max(1, length) // 8) * 8


def token_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Divide the positions of `lengths` into batches of similar length, each of at most `max_tokens` with padding.

    The longest come first, so that a batch too large for memory fails at once; equal lengths keep their order. A text
    longer than `max_tokens` is a batch of its own.

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
