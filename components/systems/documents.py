"""Documents of a system: their ids in the order of its vectors, and their titles and texts.

A system's folder has `documents.jsonl`, which is like BEIR's `corpus.jsonl`: `_id`, `title` and `text` in each line.
"""

import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import Damaged, UserError
from sparring.components.data.groups import id_order, ids_of
from sparring.components.data.tables import DOCUMENTS, pieces, records
from sparring.components.sources.reading import readable

NULL, NULL_BELOW = re.compile(rb"\s*null"), re.compile(rb"\n\s*null")
"""A null instead of a document, in the first line and below."""
BLOCK = 2**26
"""Bytes of the file that are parsed at a time. No line may be longer."""
NAMES = {"_id": "doc_id", "title": "title", "text": "text"}
"""BEIR's keys, and the columns of our tables."""


class Documents(ABC):
    """A collection's documents."""

    def __init__(self, ids: pa.Array) -> None:
        """`ids` are in the order of the vectors' rows."""
        self.by_id, self.order = id_order(ids)
        self.sorted = ids.take(pa.array(self.by_id))

    def place(self, doc_id: str) -> int | None:
        """Return the position of an id among the sorted ids, or None if there is no such document."""
        place = bisect_left(range(len(self.sorted)), doc_id, key=lambda row: self.sorted[row].as_py())
        return place if place < len(self.sorted) and self.sorted[place].as_py() == doc_id else None

    @abstractmethod
    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return titles and texts of some documents, by id."""


class InTable(Documents):
    """Documents of a run's table, which is never held in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(ids_of(path, "doc_id"))
        self._path = path

    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return titles and texts of some documents, by id. The file is scanned."""
        return {doc_id: (row["title"], row["text"]) for doc_id, row in records(self._path, "doc_id", list(ids)).items()}


class InMemory(Documents):
    """Documents of a table that is held in memory: ids, titles and texts."""

    def __init__(self, table: pa.Table) -> None:
        ids, self._titles, self._texts = (column.combine_chunks() for column in table.columns)
        super().__init__(ids)

    @classmethod
    def of_folder(cls, path: Path, count: int) -> Self:
        """Read the documents of a system's folder. Raise Damaged unless there are `count`."""
        try:
            table = _parsed(path)
        except UserError as error:
            raise Damaged(str(error)) from None
        if len(table) != count:
            raise Damaged(f"{path}: {len(table)} documents, and the system has {count}")
        lacking = [key for key in NAMES if table[key].null_count]
        if lacking or pc.count_distinct(table["_id"]).as_py() != count:
            reason = f"a document without {lacking[0]}" if lacking else "two documents with the same _id"
            raise Damaged(f"{path}: {reason}")
        return cls(table.select(list(NAMES)))

    @classmethod
    def of_table(cls, path: Path) -> Self:
        """Read the documents of a run's table."""
        return cls(pa.concat_tables(pieces(path, DOCUMENTS)).select(list(NAMES.values())))

    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return titles and texts of some documents, by id."""
        places = [place for place in map(self.place, ids) if place is not None]
        rows = self.by_id[places].tolist()
        return {id: (self._titles[row].as_py(), self._texts[row].as_py()) for id, row in zip(ids, rows, strict=True)}


def write(table: Path, to: Path) -> None:
    """Write a run's table of documents in the layout of a system's folder."""
    with to.open("w", encoding="utf-8") as file:
        for piece in pieces(table, DOCUMENTS):
            for row in piece.to_pylist():
                file.write(json.dumps({key: row[name] for key, name in NAMES.items()}, ensure_ascii=False) + "\n")


def _parsed(path: Path) -> pa.Table:
    """Parse the file as a table, on all cores."""
    import pyarrow.json  # needed only by the commands that open a folder

    options = pyarrow.json.ReadOptions(block_size=max(1, min(BLOCK, path.stat().st_size)))
    schema = pa.schema([(key, DOCUMENTS.field(name).type) for key, name in NAMES.items()])
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with readable(path, "a JSON object a line"), pa.memory_map(str(path)) as file:
        text = file.read_buffer()
        # Arrow's parser would crash on a null at the beginning of a block.
        if null := NULL.match(text) or NULL_BELOW.search(text):
            number = bytes(text[: null.end()]).count(b"\n") + 1
            raise UserError(f"{path}:{number}: not a JSON object")
        table = pyarrow.json.read_json(pa.BufferReader(text), options, parsing)
        table.validate(full=True)  # Arrow's parser takes text that is not UTF-8
        return table
