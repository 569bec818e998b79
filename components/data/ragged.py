"""Rows of different lengths, for example the weighted terms of documents or the vectors of their tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparring.components.timing import timed


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of entries. Row i has the entries from `offsets[i]` up to `offsets[i + 1]`, as in a CSR matrix."""

    offsets: npt.NDArray[np.int64]
    """Starts of the rows, and the end of the last: (N + 1,)."""
    values: tuple[npt.NDArray, ...]
    """Arrays with the values of all T entries, for example terms and their weights: (T, ...)."""

    @classmethod
    def of(cls, where: npt.NDArray[np.bool_], *values: npt.NDArray) -> Self:
        """Keep the places of (N, L, ...) arrays at which `where` (N, L) is True.

        >>> rows = Ragged.of(np.array([[True, False], [True, True]]), np.array([[5, 0], [6, 7]]))
        >>> len(rows), rows.offsets.tolist(), rows.values[0].tolist()
        (2, [0, 1, 3], [5, 6, 7])
        """
        return cls(np.r_[0, np.cumsum(where.sum(1))], tuple(array[where] for array in values))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of all parts, in order."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        columns = zip(*(part.values for part in parts), strict=True)
        return cls(np.r_[0, np.cumsum(lengths)], tuple(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Self:
        """Take some rows, in the given order.

        >>> rows = Ragged(np.array([0, 1, 3]), (np.array([5, 6, 7]),))[np.array([1, 0, 1])]
        >>> rows.offsets.tolist(), rows.values[0].tolist()
        ([0, 2, 3, 5], [6, 7, 5, 6, 7])
        """
        chosen = np.arange(len(self))[rows]
        lengths = (self.offsets[1:] - self.offsets[:-1])[chosen]
        offsets = np.r_[0, np.cumsum(lengths)]
        entries = np.repeat(self.offsets[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return type(self)(offsets, tuple(array[entries] for array in self.values))

    def row(self, number: int) -> tuple[npt.NDArray, ...]:
        """Return the values of one row's entries.

        >>> Ragged(np.array([0, 1, 3]), (np.array([5, 6, 7]),)).row(1)[0].tolist()
        [6, 7]
        """
        return tuple(np.asarray(array[self.offsets[number] : self.offsets[number + 1]]) for array in self.values)

    def save(self, path: Path) -> None:
        """Write `offsets` and `values` to a file, one after another in NumPy's format. The write is not atomic."""
        with timed("files"), path.open("wb") as file:
            for array in (self.offsets, *self.values):
                np.save(file, array)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Memory-map a file of `save`, copy on write. Raise ValueError if the file is truncated."""
        arrays, size = [], os.path.getsize(path)
        with path.open("rb") as file:
            while file.tell() < size:
                if np.lib.format.read_magic(file) != (1, 0):
                    raise ValueError("not an array of version 1.0")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                bytes_of = dtype.itemsize * int(np.prod(shape))
                if file.tell() + bytes_of > size:
                    raise ValueError("the last array is cut")
                arrays.append(_mapped(path, dtype, shape, file.tell()))
                file.seek(bytes_of, os.SEEK_CUR)
        return cls(arrays[0], tuple(arrays[1:]))


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> npt.NDArray:
    if 0 in shape:  # an empty array cannot be memory-mapped
        return np.empty(shape, dtype)
    mapped = np.memmap(path, dtype=dtype, mode="c", offset=offset, shape=shape)
    return mapped.view(np.ndarray)  # a plain array over the same memory, because slices of `memmap` are slow
