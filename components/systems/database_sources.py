"""Documents and vectors to send to a database: those of an exported system's folder, or those of a run's artifacts."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.components.config import Damaged, UserError
from sparring.components.data.tables import DOCUMENTS, pieces, rows_in
from sparring.components.data.vectors import DocumentVectors
from sparring.components.retrieval import quantised
from sparring.components.retrieval.kinds.dense import DenseStage
from sparring.components.systems import config as configs
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.database import KEY, Batch, Source, column
from sparring.components.systems.documents import NAMES

IDS_AT_ONCE = 10_000
"""Number of ids that are read together."""


class FolderSource(Source):
    """The documents of a system's folder. Vectors are read from its FAISS indexes, whose files are memory-mapped."""

    def __init__(self, folder: Path, config: SystemConfig, *, threads: int) -> None:
        """Open the indexes. UserError if an index does not hold whole vectors."""
        from sparring.components.retrieval import index

        self.documents, self.widths = config.documents, {}
        self._path, self._read = folder / configs.DOCUMENTS, dict[str, Any]()
        for name, stage in config.of_kind(DenseStage):
            opened = index.read(folder / stage.index, threads=threads, gpu=False)
            if opened.ntotal != config.documents:
                message = f"{folder / stage.index}: {opened.ntotal} vectors, and the system has {config.documents}"
                raise Damaged(f"{message} documents", folder / stage.index)
            self.widths[column(name)], self._read[column(name)] = int(opened.d), index.reader(opened)

    def batches(self, rows: int) -> Iterator[Batch]:
        """Read lines of `documents.jsonl`, with the vectors of the same rows."""
        first = 0
        for records in self._records(rows):
            ids, titles, texts = ([record[key] for record in records] for key in NAMES)
            if first + len(ids) <= self.documents:
                places = np.arange(first, first + len(ids))
                vectors = {name: np.asarray(read(places), np.float32) for name, read in self._read.items()}
                yield Batch(ids, titles, texts, vectors)
            first += len(ids)
        if first != self.documents:
            raise Damaged(f"{self._path}: {first} documents, and the system has {self.documents}", self._path)

    def ids(self) -> Iterator[list[str]]:
        """Read the ids of all lines."""
        for records in self._records(IDS_AT_ONCE):
            yield [record["_id"] for record in records]

    def _records(self, rows: int) -> Iterator[list[dict[str, str]]]:
        """Read lines. Damaged if one is no document."""
        records = list[dict[str, str]]()
        with self._path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    records.append({key: record[key] for key in NAMES})
                except (ValueError, KeyError, TypeError):
                    raise Damaged(f"{self._path}:{number}: no document", self._path) from None
                if len(records) == rows:
                    yield records
                    records = []
        if records:
            yield records


class TableSource(Source):
    """The documents of a run's table, with stored vectors of the same rows."""

    def __init__(self, table: Path, vectors: Mapping[str, Path]) -> None:
        """`vectors` has the folder of each column's vectors. They are as encoded, or of 8 bits."""
        self.documents, self._table = rows_in(table), table
        self._vectors = {name: DocumentVectors(folder) for name, folder in vectors.items()}
        self._scales = dict[str, npt.NDArray[np.float32]]()
        for name, folder in vectors.items():
            quantiser = quantised.read(folder)
            if quantiser is not None and quantiser.vectors == "binary":
                raise UserError(f"{KEY}: vectors of bits cannot be sent. Use --system NAME.", code="no-vectors")
            if quantiser is not None and quantiser.scale is not None:
                self._scales[name] = np.asarray(quantiser.scale, np.float32)
        self.widths = {name: vectors.width for name, vectors in self._vectors.items()}

    def batches(self, rows: int) -> Iterator[Batch]:
        """Read the table in pieces, with the vectors of the same rows."""
        first = 0
        for piece in pieces(self._table, DOCUMENTS, rows=rows):
            ids, titles, texts = (piece[name].to_pylist() for name in NAMES.values())
            places = np.arange(first, first + len(ids))
            yield Batch(ids, titles, texts, {name: self._rows(name, places) for name in self.widths})
            first += len(ids)

    def ids(self) -> Iterator[list[str]]:
        """Read the column of ids."""
        for piece in pieces(self._table, DOCUMENTS, columns=["doc_id"], rows=IDS_AT_ONCE):
            yield piece["doc_id"].to_pylist()

    def _rows(self, name: str, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Read vectors as fp32. Numbers of 8 bits become those that they stand for."""
        vectors = np.asarray(self._vectors[name][places], np.float32)
        return vectors * self._scales[name] if name in self._scales else vectors
