"""Exact search for the k best documents of every query, by inner product.

A retrieved document is one 64-bit integer, its key. The high half is the score, transformed so that higher scores are
smaller integers; the low half is the document's tie rank, its place in the order that breaks ties. So a smaller key is
a better document, no two keys are equal, and the k smallest keys are the result, however documents and queries were
divided into blocks and shards, and on whichever workers.

Inner products are computed in blocks that fit the cache (`components.retrieval.blocks`). Only those that can still
enter a query's list are looked at again, and for most this is decided by the maximum over a segment of a block's
documents.

On a GPU documents in float16 are multiplied by two halves of each query: its value rounded to float16, and what that
leaves. Sums are in float32, so the product is as exact as one of float32, on units that multiply halves many times
faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparring.components.retrieval import blocks

if TYPE_CHECKING:  # imported where vectors are multiplied: a driver that only merges does not pay for it
    import torch

Keys = npt.NDArray[np.int64]

NO_DOCUMENT = np.iinfo(np.int64).max
"""Pads lists shorter than k; larger than every key."""

QUERY_BLOCK, GPU_QUERY_BLOCK = 1024, 8192
"""Queries in a block, on a processor and on a GPU. It changes no result."""
REST = 64.0
"""Factor of the remainder of a query's value after rounding to float16. Documents are divided by it, so that neither is
too small for float16."""
LARGEST = 65_504.0
"""The largest number in float16."""


def top_k(
    queries: npt.NDArray, documents: Sequence[npt.NDArray], order: Keys | None, k: int, *, device: str = "cpu"
) -> Keys:
    """Return (Q, min(k, number of documents)) keys of the k best documents of each query, best first.

    `documents` are arrays of consecutive rows, float32 or float16, memory-mapped or not, read a block at a time.
    `order` has the tie rank of each row. If None, ties are in row order. Inner products are in float32. ValueError if a
    vector has values that are not finite.
    """
    import torch

    count = sum(len(shard) for shard in documents)
    if not len(queries) or not min(k, count):
        return np.empty((len(queries), min(k, count)), np.int64)
    vectors = torch.from_numpy(np.array(queries, np.float32)).to(device)
    _finite(vectors, "queries")
    many = GPU_QUERY_BLOCK if vectors.is_cuda else QUERY_BLOCK
    lists = [_Lists(part, min(k, count), blocks.largest(device)) for part in vectors.split(many)]
    tie_ranks = _TieRanks(order, device)
    for block in blocks.read(documents, device):
        _finite(block, "documents")
        block_tie_ranks = tie_ranks.take(len(block))
        for part in lists:
            part.add(block, block_tie_ranks)
    return np.concatenate([part.best().cpu().numpy() for part in lists])


def merge(partials: Sequence[Keys], k: int) -> Keys:
    """Merge (Q, n) lists, unsorted and of any lengths, into (Q, at most k) best keys."""
    joined = np.concatenate(partials, axis=1)
    if joined.shape[1] > k:
        joined = np.partition(joined, k - 1, axis=1)[:, :k]
    return np.sort(joined, axis=1)


def keys(scores: npt.NDArray[np.float32], tie_ranks: npt.NDArray) -> Keys:
    """Pack scores and tie ranks into keys."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # adding 0 turns -0 into 0, its equal
    return (~_ordered(bits)).astype(np.int64) << 32 | tie_ranks.astype(np.int64)


def scores_of(keys: Keys) -> npt.NDArray[np.float32]:
    """Unpack the scores of keys."""
    return _ordered(~(keys >> 32).astype(np.int32)).view(np.float32)


def tie_ranks_of(keys: Keys) -> npt.NDArray[np.int64]:
    """Unpack the tie ranks of keys."""
    return keys & 0xFFFFFFFF


def _ordered(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Map the bits of floats to integers that sort like the floats. The function is its own inverse."""
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _finite(vectors: torch.Tensor, role: str) -> None:
    import torch

    # One pass: the sum is not finite if any value is not.
    if not math.isfinite(float(vectors.sum(dtype=torch.float32))):
        raise ValueError(f"the vectors of the {role} hold values that are not finite numbers")


class _Queries:
    """(Q, d) queries in float32, and their inner products with documents."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self._vectors = vectors
        fit = vectors.is_cuda and float(vectors.abs().max()) <= LARGEST
        self._halves = halves(vectors) if fit else None

    def products(self, documents: torch.Tensor) -> torch.Tensor:
        """Compute (Q, N) inner products in float32 with (N, d) documents in float32, or on a GPU in float16."""
        import torch

        if self._halves is not None and documents.dtype is torch.float16:  # one product: each sum is written once
            return torch.mm(self._halves, torch.cat([documents, documents / REST], 1).T, out_dtype=torch.float32)
        if self._vectors.is_cuda or not torch.backends.mkldnn.is_available():
            return torch.mm(self._vectors, documents.float().T)
        # torch.mm uses MKL for float32, which is slower than oneDNN on AMD processors.
        return torch.ops.mkldnn._linear_pointwise(self._vectors, documents, None, "none", [], "")


def halves(vectors: torch.Tensor) -> torch.Tensor:
    """Split (N, d) float32 values within float16's range: (N, 2d) in float16, rounded values and `REST` x
    remainders."""
    import torch

    rounded = vectors.half()
    return torch.cat([rounded, ((vectors - rounded.float()) * REST).half()], 1)


def _true(mask: torch.Tensor) -> torch.Tensor:
    """Return the flat indices at which a mask is True."""
    import torch

    if mask.is_cuda:
        return mask.flatten().nonzero().flatten()
    return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times as fast as torch's own


def _segments(tensor: torch.Tensor, *, apart: bool) -> torch.Tensor:
    """Cut the last dimension, a block's documents, into (segments, documents of a segment).

    A segment's documents lie next to each other, or `apart` on a GPU: each segment has every n-th document, so that
    threads that run together read adjacent numbers.
    """
    count = tensor.shape[-1]
    length = min(blocks.SEGMENT, count)
    if apart:
        return tensor.unflatten(-1, (length, count // length)).transpose(-1, -2)
    return tensor.unflatten(-1, (count // length, length))


class _TieRanks:
    """The tie ranks of consecutive documents, a block at a time."""

    def __init__(self, order: Keys | None, device: str) -> None:
        self._order, self._device, self.seen = order, device, 0

    def take(self, count: int) -> torch.Tensor:
        """Return the tie ranks of the next `count` documents."""
        import torch

        start, self.seen = self.seen, self.seen + count
        if self._order is None:
            return torch.arange(start, start + count, device=self._device)
        return torch.from_numpy(np.array(self._order[start : start + count], np.int64)).to(self._device)


class _Lists:
    """The best documents so far of one block of queries.

    A document that reaches a query's threshold, its k-th best score when rows were last pruned, is appended to its row.
    Before a row can overflow, all rows are pruned to their k best and thresholds rise. After the first blocks few
    documents reach them, so rows fill slowly.
    """

    def __init__(self, queries: torch.Tensor, k: int, block: int) -> None:
        import torch

        self._torch, self._queries, self._k, self._seen = torch, _Queries(queries), k, 0
        self._capacity = k + k // 2  # until rows are pruned; a row also has space for one whole block more
        shape = (len(queries), self._capacity + block)
        self._rows = torch.full(shape, NO_DOCUMENT, dtype=torch.int64, device=queries.device)
        self._filled = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        self._thresholds = torch.full((len(queries),), torch.finfo(torch.float32).min, device=queries.device)

    def add(self, documents: torch.Tensor, tie_ranks: torch.Tensor) -> None:
        """Add the documents of a block that reach the thresholds."""
        count = len(documents)
        products = self._queries.products(documents)
        if self._seen < 3 * blocks.SEGMENT * self._k:  # almost every segment still has a document to add
            passing = _true(products >= self._thresholds[:, None])
            row = passing // count
            self._append(row, products.view(-1)[passing], tie_ranks[passing - row * count])
        else:
            self._append(*self._by_segments(products, tie_ranks))
        self._seen += count

    def _by_segments(
        self, products: torch.Tensor, tie_ranks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Find documents to add in the segments whose maximum reaches the threshold. Return rows, scores and tie
        ranks."""
        segments, tie_ranks = (_segments(tensor, apart=products.is_cuda) for tensor in (products, tie_ranks))
        in_row = len(tie_ranks)
        promising = _true(segments.amax(dim=2) >= self._thresholds[:, None])
        row = promising // in_row
        segment = promising - row * in_row
        values = segments[row, segment]
        passing = _true(values >= self._thresholds[row][:, None])
        which = passing // values.shape[1]
        place = tie_ranks[segment[which], passing - which * values.shape[1]]
        return row[which], values.flatten()[passing], place

    def _append(self, row: torch.Tensor, scores: torch.Tensor, tie_ranks: torch.Tensor) -> None:
        """Append documents to their queries' rows; `row` ascends."""
        torch = self._torch
        counts = torch.bincount(row, minlength=len(self._filled))
        first = self._filled - counts.cumsum(0) + counts
        column = first[row] + torch.arange(len(row), device=row.device)
        bits = (scores + 0.0).view(torch.int32)
        turned = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))
        self._rows[row, column] = (turned.long() << 32) | tie_ranks
        self._filled += counts
        if int(self._filled.max()) > self._capacity:
            self._prune()

    def _prune(self) -> None:
        """Keep the k best of every row, unsorted, and raise the thresholds."""
        torch, k = self._torch, self._k
        filled = self._rows[:, : max(k, int(self._filled.max()))]
        best = self._smallest(filled)
        filled[:, :k] = best
        filled[:, k:] = NO_DOCUMENT
        self._filled.clamp_(max=k)
        worst = best.amax(dim=1)
        bits = (~(worst >> 32)).int()
        threshold = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)
        self._thresholds = torch.where(worst == NO_DOCUMENT, self._thresholds, threshold)

    def _smallest(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[1] == self._k:
            return rows
        if rows.is_cuda:
            return rows.topk(self._k, dim=1, largest=False, sorted=False).values
        return self._torch.from_numpy(np.partition(rows.numpy(), self._k - 1, axis=1)[:, : self._k])

    def best(self) -> torch.Tensor:
        """Return (Q, k) keys, best first."""
        self._prune()
        return self._rows[:, : self._k].sort(dim=1).values
