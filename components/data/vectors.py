"""The vectors that the step `encode` writes: `documents-*.npy`, whose order `documents.json` has, `queries.npy` and the
ids of its rows in `queries.json`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.config import UserError
from components.data.tables import TEXT
from components.files import write_array

MAX_NUMBERS = 2**26
"""The most numbers (floats) of document vectors held in memory at once. It changes memory and speed, not results."""

SHARDS = "documents.json"
"""The names of the files of documents' vectors, in the order of the documents. Sorted by name, the 100,000th file would
come before the second."""

Rows = npt.NDArray[np.int64]


class Shards(Sequence[npt.NDArray]):
    """Arrays in files. Each is memory-mapped anew whenever it is asked for: the pages that were read count as the
    process's memory as long as a mapping exists, so lasting mappings would grow with the collection."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Shards(self._paths[at])
        return np.load(self._paths[at], mmap_mode="c")  # copy on write: torch does not accept read-only memory


def document_shards(folder: Path) -> Shards:
    """The documents' vectors, in the order of the documents."""
    return Shards([folder / name for name in json.loads((folder / SHARDS).read_text())])


class Vectors:
    """The vectors of a collection, from which rows are read on demand."""

    def __init__(self, folder: Path) -> None:
        self._queries = folder / "queries.npy"
        self._documents = document_shards(folder)
        self._starts = np.cumsum([0, *(len(shard) for shard in self._documents)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def width(self) -> int:
        """The dimension of a document's vector."""
        return int(self._documents[0].shape[1])

    def queries(self, rows: Rows) -> npt.NDArray:
        """(n, d) the vectors of some queries, in their stored precision."""
        return np.load(self._queries, mmap_mode="r")[rows]

    def documents(self, rows: Rows) -> npt.NDArray:
        """(n, d) the vectors of some documents, in their stored precision; `rows` must ascend."""
        if len(rows) and rows[-1] >= len(self):
            raise IndexError(f"row {rows[-1]} of the vectors of {len(self)} documents")
        cuts = np.searchsorted(rows, self._starts)
        shards = np.flatnonzero(np.diff(cuts))
        return np.concatenate([self._documents[i][rows[cuts[i] : cuts[i + 1]] - self._starts[i]] for i in shards])

    def contexts(self, queries: Rows, documents: Rows, batch: int) -> Iterator[tuple[slice, npt.NDArray, npt.NDArray]]:
        """Batches of queries with their lists of documents: the slice of queries, their vectors (B, d), and their
        documents' vectors (B, N, d).

        `queries` (Q,) and `documents` (Q, N) are rows, B is at most `batch`. Vectors are read for more than one batch
        at a time, up to `MAX_NUMBERS`, and a document of several queries is read once.
        """
        width = np.load(self._queries, mmap_mode="r").shape[-1]
        step = max(1, MAX_NUMBERS // max(1, documents.shape[1] * width))
        for start in range(0, len(queries), step):
            rows, columns = np.unique(documents[start : start + step], return_inverse=True)
            document_vectors, query_vectors = self.documents(rows), self.queries(queries[start : start + step])
            for name, vectors in {"queries": query_vectors, "documents": document_vectors}.items():
                if not np.isfinite(vectors).all():
                    raise ValueError(f"the vectors of the {name} hold values that are not finite numbers")
            columns = columns.reshape(len(query_vectors), -1)
            for i in range(0, len(query_vectors), batch):
                stop = min(i + batch, len(query_vectors))
                yield slice(start + i, start + stop), query_vectors[i:stop], document_vectors[columns[i:stop]]


def query_rows(folder: Path, ids: pa.Array | pa.ChunkedArray) -> Rows:
    """int64 rows of `queries.npy` for ids of queries; UserError names a query that was not encoded."""
    encoded = pa.array(json.loads((folder / "queries.json").read_text()), TEXT)
    rows = pc.index_in(ids, value_set=encoded)
    if rows.null_count:
        missing = pc.filter(ids, pc.is_null(rows))[0]
        raise UserError(f"query {missing} was not encoded; its split is not one of those encoded")
    return np.asarray(rows.to_numpy(), np.int64)


class Lists(NamedTuple):
    """One list of documents for each query, as rows of the vectors. Saved, so that a worker reads only its part."""

    queries: Rows
    """(Q,) rows of the queries' vectors."""
    documents: Rows
    """All lists, one after another, as rows of the documents' vectors."""
    offsets: Rows
    """(Q + 1,) where each list starts in `documents`, and the end of the last."""

    def save(self, folder: Path) -> None:
        """Write them as `lists.<field>.npy`."""
        for name, array in self._asdict().items():
            write_array(folder / f"lists.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, start: int, stop: int) -> Self:
        """Load the lists of the queries from `start` up to `stop`."""
        queries, documents, offsets = (np.load(folder / f"lists.{name}.npy", mmap_mode="r") for name in cls._fields)
        own = np.array(offsets[start : stop + 1])
        return cls(np.array(queries[start:stop]), np.array(documents[own[0] : own[-1]]), own - own[0])

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(Q, N) the mask of `padded`: which places hold a document. N is the length of the longest list."""
        counts = np.diff(self.offsets)
        return np.arange(counts.max(initial=0)) < counts[:, None]

    def padded(self, values: npt.NDArray) -> npt.NDArray:
        """(Q, N) one value for each document, with 0 after the end of shorter lists."""
        mask = self.mask
        full = np.zeros(mask.shape, values.dtype)
        full[mask] = values
        return full
