"""Vectors as they are stored: of a collection's documents, `documents-*.npy`, whose order `documents.json` has
(`encode_documents`), and of a split's queries, `queries.npy` with the ids of its rows in `queries.json`
(`encode_queries`)."""

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
"""The most numbers (floats) of document vectors held in memory at once. It changes memory and speed, not results."""

SHARDS = "documents.json"
"""The names of the files of documents' vectors, in the order of the documents. Sorted by name, the 100,000th file would
come before the second."""

KIND = "kind.json"
"""The file that names the retriever kind of stored representations. Plain vectors have none."""

Rows = npt.NDArray[np.int64]


def stored_kind(folder: Path) -> str | None:
    """The kind of the representations in a folder; None for vectors."""
    return str(read_json(folder / KIND)) if (folder / KIND).exists() else None


def joined(parts: Sequence[Any]) -> Any:
    """Join the rows of stored representations, in order."""
    return Ragged.joined(parts) if isinstance(parts[0], Ragged) else np.concatenate(parts)


def save_rows(path: Path, rows: Any) -> None:
    """Write a file that `read_rows` reads. Not atomic."""
    if isinstance(rows, Ragged):
        rows.save(path)
    else:
        save_array(path, rows)


def _check_vectors(folder: Path) -> None:
    """UserError for representations that are no vectors."""
    if (name := stored_kind(folder)) is not None:
        raise UserError(f"{folder}: representations of the kind {name}, which are no vectors. Use a dense retriever.")


def read_rows(path: Path) -> Any:
    """A file of stored representations: an array, or `Ragged`, whose file has several arrays.

    It is memory-mapped, copy on write, as torch does not accept read-only memory.
    """
    try:
        array = np.load(path, mmap_mode="c")
        return array if array.offset + array.nbytes >= path.stat().st_size else Ragged.open(path)
    except (ValueError, EOFError) as error:
        raise Damaged(f"{path}: cut, or no array: {error}", path) from None


class Shards(Sequence[Any]):
    """Arrays in files, or rows of different lengths. Each is memory-mapped anew whenever it is asked for: the pages
    that were read count as the process's memory as long as a mapping exists, so lasting mappings would grow with the
    collection."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Shards(self._paths[index])
        return read_rows(self._paths[index])


def document_shards(folder: Path) -> Shards:
    """The documents' vectors or other representations, in the order of the documents."""
    return Shards([folder / name for name in read_json(folder / SHARDS)])


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
        """Return the dimension of a vector."""
        return int(self._shards[0].shape[1])

    def __getitem__(self, rows: Rows) -> npt.NDArray:
        """(n, d) the vectors of some documents, in their stored precision; `rows` must ascend."""
        if len(rows) and rows[-1] >= len(self):
            raise IndexError(f"row {rows[-1]} of the vectors of {len(self)} documents")
        cuts = np.searchsorted(rows, self._starts)
        shards = np.flatnonzero(np.diff(cuts))
        return np.concatenate([self._shards[i][rows[cuts[i] : cuts[i + 1]] - self._starts[i]] for i in shards])

    def lists(self, documents: Rows, batch: int) -> Iterator[tuple[slice, npt.NDArray]]:
        """Batches of lists: the slice of lists, and their documents' vectors (B, N, d).

        `documents` (Q, N) are rows, B is at most `batch`. Vectors are read for more than one batch at a time, up to
        `MAX_NUMBERS`, and a document of several lists is read once.
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
    """The vectors of some splits' queries, from which rows are read on demand. Rows count on from split to split."""

    def __init__(self, *folders: Path) -> None:
        for folder in folders:
            _check_vectors(folder)
        self._folders = folders
        self._starts = np.cumsum([0, *map(len, self._open())])

    def rows(self, ids: pa.Array | pa.ChunkedArray) -> Rows:
        """int64 rows for ids of queries; UserError names a query that was not encoded."""
        rows = pc.index_in(ids, value_set=pa.concat_arrays([read_query_ids(folder) for folder in self._folders]))
        if rows.null_count:
            missing = pc.filter(ids, pc.is_null(rows))[0]
            raise UserError(
                f"query {missing} was not encoded; its split is not one of those encoded",
                key=str(missing),
                code="not-encoded",
            )
        return np.asarray(rows.to_numpy(), np.int64)

    def __getitem__(self, rows: Rows) -> npt.NDArray:
        """(n, d) the vectors of some queries, in their stored precision."""
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
    """Batches of queries with their lists of documents: the slice of queries, their vectors (B, d), and their
    documents' vectors (B, N, d).

    `rows` (Q,) are the queries', `lists` (Q, N) the documents'; B is at most `batch`.
    """
    for part, vectors in documents.lists(lists, batch):
        yield part, _finite(queries[rows[part]], "queries"), vectors


def _finite(vectors: npt.NDArray, name: str) -> npt.NDArray:
    if not np.isfinite(vectors).all():
        raise ValueError(f"the vectors of the {name} hold values that are not finite numbers")
    return vectors


class Lists(NamedTuple):
    """One list of documents for each query, as rows of the vectors. Saved, so that a worker reads only its part."""

    queries: Rows
    """(Q,) rows of the queries' vectors."""
    documents: Rows
    """All lists, one after another, as rows of the documents' vectors."""
    offsets: Rows
    """(Q + 1,) where each list starts in `documents`, and the end of the last."""

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Join lists, part after part."""
        nothing = np.empty(0, np.int64)
        queries, documents, lengths = [nothing], [nothing], [nothing]
        for part in parts:
            queries.append(part.queries)
            documents.append(part.documents)
            lengths.append(np.diff(part.offsets))
        return cls(np.concatenate(queries), np.concatenate(documents), np.r_[0, np.cumsum(np.concatenate(lengths))])

    def save(self, folder: Path) -> None:
        """Write them as `lists.<field>.npy`."""
        for name, array in self._asdict().items():
            write_array(folder / f"lists.{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, start: int, stop: int) -> Self:
        """Load the lists of the queries from `start` up to `stop`."""
        queries, documents, offsets = (np.load(folder / f"lists.{name}.npy", mmap_mode="r") for name in cls._fields)
        bounds = np.array(offsets[start : stop + 1])
        return cls(np.array(queries[start:stop]), np.array(documents[bounds[0] : bounds[-1]]), bounds - bounds[0])

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Return the mask (Q, N) of `padded`: which places hold a document. N is the length of the longest list."""
        counts = np.diff(self.offsets)
        return np.arange(counts.max(initial=0)) < counts[:, None]

    def padded(self, values: npt.NDArray) -> npt.NDArray:
        """Arrange a value for each document as (Q, N), with 0 after the end of shorter lists."""
        mask = self.mask
        full = np.zeros(mask.shape, values.dtype)
        full[mask] = values
        return full
