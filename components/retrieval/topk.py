"""The exact k best documents of every query, by inner product.

A document that was found is one whole number. Its high half is the score, turned so that better is smaller; its low
half is the document's place in the order that breaks ties. So the smaller number is the better document, equal
numbers do not exist, and the k smallest are the answer, ties at the end of the list included, however documents and
queries were cut into blocks and shards and whoever did which.

Every inner product is computed in blocks that fit the cache; only what can still enter a query's list is looked at
again, and most of that is decided for whole runs of documents at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # imported where vectors are multiplied: a driver that only merges does not pay for it
    import torch

Keys = npt.NDArray[np.int64]

NOTHING = np.iinfo(np.int64).max
"""Fills the lists that are shorter than k; larger than every key."""

# Documents in a block, queries in a block, and documents whose best score is looked at first. They change no result.
BLOCK = 2048
QUERIES = 1024
RUN = 32
FIRST = 256
# A GPU wants larger pieces than a cache.
GPU_BLOCK = 65_536
GPU_QUERIES = 4096


def top_k(
    queries: npt.NDArray, documents: Sequence[npt.NDArray], order: Keys | None, k: int, *, device: str = "cpu"
) -> Keys:
    """Keys of the k best documents of each query, best first: `(queries, min(k, documents))`.

    `documents` are arrays (memory-mapped or not) of consecutive rows, float32 or float16, read a block at a time.
    `order` is each row's place in the order that breaks ties; None stands for the rows' own. Products are summed in
    float32 whatever the vectors are stored in.
    """
    import torch

    count = sum(len(shard) for shard in documents)
    if not len(queries):
        return np.empty((0, min(k, count)), np.int64)
    step, many = (GPU_BLOCK, GPU_QUERIES) if device != "cpu" else (BLOCK, QUERIES)
    vectors = torch.from_numpy(np.array(queries, np.float32)).to(device)
    _finite(vectors, "queries")
    lists = [_Lists(part, min(k, count), step) for part in vectors.split(many)]
    places = _Places(order, device)
    for rows in _blocks(documents, step):
        # Torch takes no read-only memory. float16 goes to the device as it is stored: half the bytes.
        block = torch.from_numpy(np.require(rows, requirements="W")).to(device).float()
        _finite(block, "documents")
        where = places.take(len(block))
        for part in lists:
            part.add(block, where)
    return np.concatenate([part.best().cpu().numpy() for part in lists])


def _blocks(documents: Sequence[npt.NDArray], largest: int) -> Iterator[npt.NDArray]:
    """All shards' rows in blocks of whole runs, and a rest: short at first, when every document passes the bar.

    A block may begin in one shard and end in another: short ones would cost as much as long ones beside their products.
    """
    parts: list[npt.NDArray] = []
    count = seen = 0
    for shard in documents:
        start = 0
        while start < len(shard):
            wanted = _runs(min(largest, max(FIRST, seen)))
            parts.append(shard[start : start + wanted - count])
            start, count = start + len(parts[-1]), count + len(parts[-1])
            if count == wanted:
                yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                seen, count, parts = seen + count, 0, []
    if count:
        rest = np.concatenate(parts)
        yield rest[: _runs(count)]
        if _runs(count) < count:
            yield rest[_runs(count) :]


def _runs(count: int) -> int:
    """As much of a count as is whole runs, or all of what is less than one."""
    return count // RUN * RUN or count


def merge(partials: Sequence[Keys], k: int) -> Keys:
    """The k best of several lists of the same queries; the lists need not be sorted or equally long."""
    together = np.concatenate(partials, axis=1)
    if together.shape[1] > k:
        together = np.partition(together, k - 1, axis=1)[:, :k]
    return np.sort(together, axis=1)


def keys(scores: npt.NDArray[np.float32], places: npt.NDArray) -> Keys:
    """Scores and places in the tie-breaking order as keys."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # adding 0 makes -0 equal to 0, as they are
    return (~_ordered(bits)).astype(np.int64) << 32 | places.astype(np.int64)


def scores(found: Keys) -> npt.NDArray[np.float32]:
    """The scores in keys."""
    return _ordered(~(found >> 32).astype(np.int32)).view(np.float32)


def places(found: Keys) -> npt.NDArray[np.int64]:
    """The places in the tie-breaking order in keys."""
    return found & 0xFFFFFFFF


def _ordered(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The bits of floats as whole numbers in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _finite(vectors: torch.Tensor, what: str) -> None:
    # A sum is enough and costs one pass: what is not finite stays so.
    if not math.isfinite(float(vectors.sum())):
        raise ValueError(f"the vectors of the {what} hold values that are not finite numbers")


def _products(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Every inner product, float32: `(queries, documents)`."""
    import torch

    if queries.is_cuda or not torch.backends.mkldnn.is_available():
        return torch.mm(queries, documents.T)
    # By itself torch multiplies float32 with MKL, which on AMD's processors is slower than oneDNN.
    return torch.ops.mkldnn._linear_pointwise(queries, documents, None, "none", [], "")


def _true(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask holds, counted through its rows."""
    import torch

    if mask.is_cuda:
        return mask.flatten().nonzero().flatten()
    return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times as fast as torch's own


class _Places:
    """Hands out the places of consecutive documents."""

    def __init__(self, order: Keys | None, device: str) -> None:
        self._order, self._device, self.seen = order, device, 0

    def take(self, count: int) -> torch.Tensor:
        """Those of the next documents."""
        import torch

        start, self.seen = self.seen, self.seen + count
        if self._order is None:
            return torch.arange(start, start + count, device=self._device)
        return torch.from_numpy(np.array(self._order[start : start + count], np.int64)).to(self._device)


class _Lists:
    """The best documents so far of one block of queries.

    What passes a query's bar (its k-th best score at the last tidying) is put at the end of its row; when a row could
    overflow, all rows are cut back to their k best and the bars rise. After the first blocks little passes, so that
    rows fill slowly.
    """

    def __init__(self, queries: torch.Tensor, k: int, block: int) -> None:
        import torch

        self._torch, self._queries, self._k, self._seen = torch, queries, k, 0
        self._room = k + k // 2  # between two tidyings, beside a whole block's worth
        shape = (len(queries), self._room + block)
        self._rows = torch.full(shape, NOTHING, dtype=torch.int64, device=queries.device)
        self._filled = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        self._bar = torch.full((len(queries),), torch.finfo(torch.float32).min, device=queries.device)

    def add(self, documents: torch.Tensor, places: torch.Tensor) -> None:
        """Look at a block of documents."""
        count = len(documents)
        products = _products(self._queries, documents)
        if self._seen < 3 * RUN * self._k:  # about every run holds something: to ask for each is wasted
            passing = _true(products >= self._bar[:, None])
            row = passing // count
            self._append(row, products.view(-1)[passing], places[passing - row * count])
        else:
            self._append(*self._by_runs(products, places))
        self._seen += count

    def _by_runs(self, products: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, scores and places of what passes; only runs whose best passes are looked into."""
        length = min(RUN, len(places))
        runs, in_row = products.view(-1, length), len(places) // length
        promising = _true(runs.amax(dim=1).view(-1, in_row) >= self._bar[:, None])
        row = promising // in_row
        values = runs.index_select(0, promising)
        passing = _true(values >= self._bar[row][:, None])
        run = passing // length
        place = places[(promising - row * in_row)[run] * length + passing - run * length]
        return row[run], values.view(-1)[passing], place

    def _append(self, row: torch.Tensor, scores: torch.Tensor, places: torch.Tensor) -> None:
        """Put documents at the end of their queries' rows; `row` ascends."""
        torch = self._torch
        counts = torch.bincount(row, minlength=len(self._filled))
        first = self._filled - counts.cumsum(0) + counts
        column = first[row] + torch.arange(len(row), device=row.device)
        bits = (scores + 0.0).view(torch.int32)
        turned = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))
        self._rows[row, column] = (turned.long() << 32) | places
        self._filled += counts
        if int(self._filled.max()) > self._room:
            self._tidy()

    def _tidy(self) -> None:
        """Cut every row back to its k best, unsorted, and raise the bars."""
        torch, k = self._torch, self._k
        filled = self._rows[:, : max(k, int(self._filled.max()))]
        best = self._smallest(filled)
        filled[:, :k] = best
        filled[:, k:] = NOTHING
        self._filled.clamp_(max=k)
        worst = best.amax(dim=1)
        bits = (~(worst >> 32)).int()
        bar = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)
        self._bar = torch.where(worst == NOTHING, self._bar, bar)

    def _smallest(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[1] == self._k:
            return rows
        if rows.is_cuda:
            return rows.topk(self._k, dim=1, largest=False, sorted=False).values
        return self._torch.from_numpy(np.partition(rows.numpy(), self._k - 1, axis=1)[:, : self._k])

    def best(self) -> torch.Tensor:
        """Each query's k best documents, best first."""
        self._tidy()
        return self._rows[:, : self._k].sort(dim=1).values
