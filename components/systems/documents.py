"""The documents that a system finds: their ids in the order of its vectors, and their titles and texts.

In a system's folder they are `documents.jsonl`, as BEIR has its `corpus.jsonl`: `_id`, `title` and `text` a line.
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
"""In place of a document, at the beginning of the file and below."""
BLOCK = 2**26
"""Bytes of the file that are parsed at a time: no line may be longer."""
NAMES = {"_id": "doc_id", "title": "title", "text": "text"}
"""BEIR's keys, and the columns of our tables."""


class Documents(ABC):
    """A collection's documents."""

    def __init__(self, ids: pa.Array) -> None:
        """`ids` are in the order of the vectors' rows."""
        self.by_id, self.order = id_order(ids)
        self.sorted = ids.take(pa.array(self.by_id))

    def place(self, one: str) -> int | None:
        """The place of an id among all in their order; None for one that is no document's."""
        at = bisect_left(range(len(self.sorted)), one, key=lambda place: self.sorted[place].as_py())
        return at if at < len(self.sorted) and self.sorted[at].as_py() == one else None

    @abstractmethod
    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Titles and texts of some documents, by id."""


class InTable(Documents):
    """Those of a run's table, which is never held in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(ids_of(path, "doc_id"))
        self._path = path

    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Titles and texts of some documents, by id: the file is scanned."""
        return {one: (row["title"], row["text"]) for one, row in records(self._path, "doc_id", list(ids)).items()}


class InMemory(Documents):
    """Those of a table that is held in memory: ids, titles and texts."""

    def __init__(self, table: pa.Table) -> None:
        ids, self._titles, self._texts = (column.combine_chunks() for column in table.columns)
        super().__init__(ids)

    @classmethod
    def of_folder(cls, path: Path, count: int) -> Self:
        """Those of a system's folder; Damaged unless there are `count`."""
        try:
            table = _parsed(path)
        except UserError as error:
            raise Damaged(str(error)) from None
        if len(table) != count:
            raise Damaged(f"{path}: {len(table)} documents, and the system has {count}")
        lacking = [key for key in NAMES if table[key].null_count]
        if lacking or pc.count_distinct(table["_id"]).as_py() != count:
            what = f"a document without {lacking[0]}" if lacking else "two documents with the same _id"
            raise Damaged(f"{path}: {what}")
        return cls(table.select(list(NAMES)))

    @classmethod
    def of_table(cls, path: Path) -> Self:
        """Those of a run's table."""
        return cls(pa.concat_tables(pieces(path, DOCUMENTS)).select(list(NAMES.values())))

    def texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Titles and texts of some documents, by id."""
        places = [place for place in map(self.place, ids) if place is not None]
        rows = self.by_id[places].tolist()
        return {one: (self._titles[row].as_py(), self._texts[row].as_py()) for one, row in zip(ids, rows, strict=True)}


def write(table: Path, to: Path) -> None:
    """Write a run's table of documents as a system's folder has it."""
    with to.open("w", encoding="utf-8") as file:
        for piece in pieces(table, DOCUMENTS):
            for row in piece.to_pylist():
                file.write(json.dumps({key: row[name] for key, name in NAMES.items()}, ensure_ascii=False) + "\n")


def _parsed(path: Path) -> pa.Table:
    """The file as a table, parsed on all cores."""
    import pyarrow.json  # of all commands, only those that open a folder need it

    options = pyarrow.json.ReadOptions(block_size=max(1, min(BLOCK, path.stat().st_size)))
    schema = pa.schema([(key, DOCUMENTS.field(name).type) for key, name in NAMES.items()])
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with readable(path, "a JSON object a line"), pa.memory_map(str(path)) as file:
        text = file.read_buffer()
        # At the beginning of a block Arrow's parser would crash.
        if found := NULL.match(text) or NULL_BELOW.search(text):
            number = bytes(text[: found.end()]).count(b"\n") + 1
            raise UserError(f"{path}:{number}: not a JSON object")
        table = pyarrow.json.read_json(pa.BufferReader(text), options, parsing)
        table.validate(full=True)  # Arrow's parser takes text that is not UTF-8
        return table
