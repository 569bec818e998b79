"""Stored vectors of documents and queries.

`encode_documents` writes the documents' vectors to `documents-*.npy`. `documents.json` lists these files in
order, with the number of documents in each.
`encode_queries` writes a split's query vectors to `queries.npy`. `queries.json` has the ids of its rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import Damaged, UserError
from sparring.components.data.ragged import Ragged
from sparring.components.data.tables import TEXT
from sparring.components.files import read_json, save_array, write_array

MAX_NUMBERS = 2**26
"""Maximum number of floats of document vectors in memory at once. It changes memory and speed, not results."""

SHARDS = "documents.json"
"""File with the names of the files of document vectors, in the order of the documents, and the number of documents in
each. Sorting by name is no substitute: the 100,000th file would come before the second."""

KIND = "kind.json"
"""File with the retriever kind of stored representations. Folders of plain vectors do not have it."""

Rows = npt.NDArray[np.int64]


def stored_kind(folder: Path) -> str | None:
    """Return the retriever kind of the representations in a folder. Return None for plain vectors."""
    return str(read_json(folder / KIND)) if (folder / KIND).exists() else None


def joined(parts: Sequence[Any]) -> Any:
    """Join the rows of stored representations, in order."""
    return Ragged.joined(parts) if isinstance(parts[0], Ragged) else np.concatenate(parts)


def save_rows(path: Path, rows: Any) -> None:
    """Write a file that `read_rows` reads. The write is not atomic."""
    if isinstance(rows, Ragged):
        rows.save(path)
    else:
        save_array(path, rows)


def _check_vectors(folder: Path) -> None:
    """Raise UserError if the stored representations are not plain vectors."""
    if (name := stored_kind(folder)) is not None:
        raise UserError(
            f"{folder}: these are representations of the kind {name}, but vectors are needed. Use a dense retriever."
        )


def read_rows(path: Path) -> Any:
    """Open a file of stored representations: an array, or `Ragged`, whose file has several arrays.

    The file is memory-mapped copy on write, because torch does not accept read-only memory.
    """
    try:
        array = np.load(path, mmap_mode="c")
        return array if array.offset + array.nbytes >= path.stat().st_size else Ragged.open(path)
    except (ValueError, EOFError) as error:
        raise Damaged(f"{path}: the file is truncated or has no array ({error})", path) from None


class Shards(Sequence[Any]):
    """Files of stored representations, opened on access.

    Each access maps a file into memory anew. Pages that were read count as the process's memory while a mapping exists,
    so lasting mappings would grow with the collection.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Shards(self.paths[index])
        return read_rows(self.paths[index])


def document_shards(folder: Path) -> Shards:
    """Open the representations of documents, in the order of the documents."""
    return Shards([folder / name for name in read_json(folder / SHARDS)])


def document_lengths(folder: Path) -> list[int]:
    """Return the number of documents in each file, without opening it."""
    return list(read_json(folder / SHARDS).values())


class DocumentVectors:
    """The vectors of a collection's documents, from which rows are read on demand."""

    def __init__(self, folder: Path) -> None:
        _check_vectors(folder)
        self._shards = document_shards(folder)
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def width(self) -> int:
        """Number of dimensions of a vector."""
        return int(self._shards[0].shape[1])

    def __getitem__(self, rows: Rows) -> npt.NDArray:
        """Read the vectors of some documents in their stored precision: (n, d). `rows` must ascend."""
        if len(rows) and rows[-1] >= len(self):
            raise IndexError(f"There is no row {rows[-1]} among the vectors of {len(self)} documents.")
        cuts = np.searchsorted(rows, self._starts)
        shards = np.flatnonzero(np.diff(cuts))
        return np.concatenate([self._shards[i][rows[cuts[i] : cuts[i + 1]] - self._starts[i]] for i in shards])

    def lists(self, documents: Rows, batch: int) -> Iterator[tuple[slice, npt.NDArray]]:
        """Yield batches of document lists: the slice of lists, and the documents' vectors (B, N, d).

        `documents` (Q, N) are rows. B is at most `batch`. Vectors of several batches are read at a time, up to
        `MAX_NUMBERS` floats, so that documents in several lists are read once.
        """
        step = max(1, MAX_NUMBERS // max(1, documents.shape[1] * self.width))
        for start in range(0, len(documents), step):
            rows, columns = np.unique(documents[start : start + step], return_inverse=True)
            vectors, count = _finite(self[rows], "documents"), len(documents[start : start + step])
            columns = columns.reshape(count, -1)
            for i in range(0, count, batch):
                stop = min(i + batch, count)
                yield slice(start + i, start + stop), vectors[columns[i:stop]]


class QueryVectors:
    """The vectors of the queries of some splits, from which rows are read on demand.

    Rows are numbered through all splits.
    """

    def __init__(self, *folders: Path) -> None:
        for folder in folders:
            _check_vectors(folder)
        self._folders = folders
        self._starts = np.cumsum([0, *map(len, self._open())])

    def rows(self, ids: pa.Array | pa.ChunkedArray) -> Rows:
        """Return the int64 rows of queries by their ids. Raise UserError for a query that was not encoded."""
        rows = pc.index_in(ids, value_set=pa.concat_arrays([read_query_ids(folder) for folder in self._folders]))
        if rows.null_count:
            missing = pc.filter(ids, pc.is_null(rows))[0]
            raise UserError(
                f"the query {missing} was not encoded. Encode the queries of its split.",
                key=str(missing),
                code="not-encoded",
            )
        return np.asarray(rows.to_numpy(), np.int64)

    def __getitem__(self, rows: Rows) -> npt.NDArray:
        """Read the vectors of some queries in their stored precision: (n, d)."""
        split, files = np.searchsorted(self._starts, rows, side="right") - 1, self._open()
        vectors = np.empty((len(rows), files[0].shape[1]), files[0].dtype)
        for i, file in enumerate(files):
            vectors[split == i] = file[rows[split == i] - self._starts[i]]
        return vectors

    def _open(self) -> list[npt.NDArray]:
        return [np.load(folder / "queries.npy", mmap_mode="r") for folder in self._folders]


def read_query_ids(folder: Path) -> pa.Array:
    """Read the ids of the queries whose vectors are in a folder, in their order."""
    return pa.array(read_json(folder / "queries.json"), TEXT)


def context_vectors(
    queries: QueryVectors, documents: DocumentVectors, rows: Rows, lists: Rows, batch: int
) -> Iterator[tuple[slice, npt.NDArray, npt.NDArray]]:
    """Yield batches of queries with document lists: the slice of queries, query vectors (B, d), and document vectors
    (B, N, d).

    `rows` (Q,) are rows of queries, and `lists` (Q, N) rows of documents. B is at most `batch`.
    """
    for part, vectors in documents.lists(lists, batch):
        yield part, _finite(queries[rows[part]], "queries"), vectors


def _finite(vectors: npt.NDArray, name: str) -> npt.NDArray:
    if not np.isfinite(vectors).all():
        raise ValueError(f"the vectors of the {name} contain values that are not finite.")
    return vectors


class Lists(NamedTuple):
    """A list of documents per query, as rows of the vectors. It is saved so that each worker can read only its part."""

    queries: Rows
    """Rows of the query vectors: (Q,)."""
    documents: Rows
    """Rows of the document vectors of all lists, one list after another."""
    offsets: Rows
    """Start of each list in `documents`, and the end of the last: (Q + 1,)."""

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Join the lists of all parts, in order."""
        nothing = np.empty(0, np.int64)
        queries, documents, lengths = [nothing], [nothing], [nothing]
        for part in parts:
            queries.append(part.queries)
            documents.append(part.documents)
            lengths.append(np.diff(part.offsets))
        return cls(np.concatenate(queries), np.concatenate(documents), np.r_[0, np.cumsum(np.concatenate(lengths))])

    def save(self, folder: Path) -> None:
        """Write the arrays as `lists.<field>.npy`."""
        for name, array in self._asdict().items():
            write_array(folder / f"lists.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, start: int, stop: int) -> Self:
        """Load the lists of the queries from `start` up to, but without, `stop`."""
        queries, documents, offsets = (np.load(folder / f"lists.{name}.npy", mmap_mode="r") for name in cls._fields)
        bounds = np.array(offsets[start : stop + 1])
        return cls(np.array(queries[start:stop]), np.array(documents[bounds[0] : bounds[-1]]), bounds - bounds[0])

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Mask of the places of `padded` that hold a document: (Q, N). N is the length of the longest list."""
        counts = np.diff(self.offsets)
        return np.arange(counts.max(initial=0)) < counts[:, None]

    def padded(self, values: npt.NDArray) -> npt.NDArray:
        """Arrange a value per document in rows (Q, N). Shorter lists are padded with 0."""
        mask = self.mask
        full = np.zeros(mask.shape, values.dtype)
        full[mask] = values
        return full
