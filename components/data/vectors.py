"""The vectors that `encode` left: `documents-*.npy` in the order of the documents, `queries.npy` and `queries.json`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.config import UserError
from components.files import write_array

HELD = 2**26
"""Numbers of vectors in memory at once; moves nothing but memory and speed."""

Rows = npt.NDArray[np.int64]


class Shards(Sequence[npt.NDArray]):
    """Arrays in files, each mapped when it is looked at and for no longer: what was read of a mapping counts as the
    process's memory for as long as that lasts, and would grow with the collection."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Shards(self._paths[at])
        return np.load(self._paths[at], mmap_mode="c")  # copy on write: torch takes no read-only memory


def documents_of(folder: Path) -> Shards:
    """The documents' vectors, in order."""
    paths = sorted(folder.glob("documents-*.npy"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no documents-*.npy")
    return Shards(paths)


class Vectors:
    """Rows of them, read where they are asked for: memory grows with the question, not with the collection."""

    def __init__(self, folder: Path) -> None:
        self._queries = folder / "queries.npy"
        self._documents = documents_of(folder)
        self._starts = np.cumsum([0, *(len(shard) for shard in self._documents)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def width(self) -> int:
        """Numbers in a document's vector."""
        return int(self._documents[0].shape[1])

    def queries(self, rows: Rows) -> npt.NDArray:
        """(n, d) those of some queries, as they are stored."""
        return np.load(self._queries, mmap_mode="r")[rows]

    def documents(self, rows: Rows) -> npt.NDArray:
        """(n, d) those of some documents, as they are stored; rows ascend."""
        if len(rows) and rows[-1] >= len(self):
            raise IndexError(f"row {rows[-1]} of the vectors of {len(self)} documents")
        cuts = np.searchsorted(rows, self._starts)
        found = []
        for i in np.flatnonzero(np.diff(cuts)):
            found.append(self._documents[i][rows[cuts[i] : cuts[i + 1]] - self._starts[i]])
        return np.concatenate(found)

    def contexts(self, queries: Rows, documents: Rows, batch: int) -> Iterator[tuple[slice, npt.NDArray, npt.NDArray]]:
        """Some queries at a time: which they are, their vectors (B, d), and their documents' (B, N, d).

        `queries` (Q,) and `documents` (Q, N) are rows, B is at most `batch`. As many queries are read together as
        memory is set aside for, and what several of them found is read once.
        """
        width = np.load(self._queries, mmap_mode="r").shape[-1]
        many = max(1, HELD // max(1, documents.shape[1] * width))
        for start in range(0, len(queries), many):
            rows, at = np.unique(documents[start : start + many], return_inverse=True)
            held, asked = self.documents(rows), self.queries(queries[start : start + many])
            for name, vectors in {"queries": asked, "documents": held}.items():
                if not np.isfinite(vectors).all():
                    raise ValueError(f"the vectors of the {name} hold values that are not finite numbers")
            at = at.reshape(len(asked), -1)
            for i in range(0, len(asked), batch):
                part = slice(i, i + batch)
                yield slice(start + i, start + min(i + batch, len(asked))), asked[part], held[at[part]]


def query_rows(folder: Path, ids: pa.Array | pa.ChunkedArray) -> Rows:
    """int64 rows of `queries.npy` for the ids of queries; UserError names one that was not encoded."""
    encoded = pa.array(json.loads((folder / "queries.json").read_text()), pa.string())
    rows = pc.index_in(ids, value_set=encoded)
    if rows.null_count:
        missing = pc.filter(ids, pc.is_null(rows))[0]
        raise UserError(f"query {missing} was not encoded: its split is not among those of the vectors")
    return np.asarray(rows.to_numpy(), np.int64)


class Lists(NamedTuple):
    """Lists of documents, one a query, as rows of the vectors; on disk, workers read only theirs."""

    queries: Rows
    """(Q,)."""
    documents: Rows
    """The lists one after another."""
    offsets: Rows
    """(Q + 1,) where each begins among them."""

    def save(self, folder: Path) -> None:
        """Write them as `lists.<field>.npy`."""
        for name, array in self._asdict().items():
            write_array(folder / f"lists.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, start: int, stop: int) -> Self:
        """Those of some queries that stand one after another."""
        queries, documents, offsets = (np.load(folder / f"lists.{name}.npy", mmap_mode="r") for name in cls._fields)
        own = np.array(offsets[start : stop + 1])
        return cls(np.array(queries[start:stop]), np.array(documents[own[0] : own[-1]]), own - own[0])

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """(Q, N) which places of `padded` hold something: as wide as the longest list."""
        counts = np.diff(self.offsets)
        return np.arange(counts.max(initial=0)) < counts[:, None]

    def padded(self, values: npt.NDArray) -> npt.NDArray:
        """(Q, N) a value for each document as an array, 0 behind the shorter lists."""
        there = self.there
        full = np.zeros(there.shape, values.dtype)
        full[there] = values
        return full
