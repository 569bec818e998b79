"""Token ids of many texts, as an array of all ids and an array of the texts' starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np


class Tokens:
    """Token ids of many texts, without special tokens: `ids[offsets[i]:offsets[i + 1]]` is text i.

    >>> tokens = Tokens.of([[7, 8], [], [9]])
    >>> tokens[0].tolist(), tokens.lengths().tolist()
    ([7, 8], [2, 0, 1])
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def open(cls, folder: Path, name: str) -> Self:
        """Open a table's tokens in a token store, memory-mapped. `name` is `documents` or `queries`."""
        return cls(*(np.load(folder / f"{name}.{part}.npy", mmap_mode="r") for part in ("ids", "offsets")))

    @classmethod
    def of(cls, texts: Iterable[Sequence[int] | np.ndarray]) -> Self:
        """Hold the token ids of a few texts in memory."""
        arrays = [np.asarray(text, np.int64) for text in texts]
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), np.cumsum([0, *map(len, arrays)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the number of tokens of the texts at `rows`: (N,). If `rows` is None, of every text."""
        return np.diff(self.offsets) if rows is None else self.offsets[rows + 1] - self.offsets[rows]
