"""Texts for models, from a table or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sparring.components.config import UserError, listing
from sparring.components.data.tables import document_text
from sparring.components.sources.records import Bad
from sparring.components.sources.table_files import columns_of, read_table

STANDARD_INPUT = Path("-")
IDS = ("_id", "id", "doc_id", "query_id")
"""Names of a column of ids."""
ACCEPTED = (
    "a table with a column `text` (.csv, .tsv, .jsonl, .json or .parquet), perhaps with `title` and `_id`; or a .txt "
    "file with one text per line; or - for lines of standard input"
)
"""The files that `read_texts` reads, for people."""


class Text(NamedTuple):
    """A text of a table."""

    id: str
    """The table's id of the text. If the table has none, the number of its row."""
    text: str
    """Title and text, as a model reads them."""


def read_texts(path: Path) -> Iterator[Text]:
    """Yield the texts of a table, or of standard input, in their order. Blank lines are texts too.

    UserError names a row that cannot be read.
    """
    if path == STANDARD_INPUT:
        yield from _lines()
        return
    columns = columns_of(path)
    if "text" not in columns:
        raise UserError(
            f"{path}: it has the columns {listing(columns)}. Call the column with the texts `text`.",
            code="wrong-columns",
        )
    id_column = next((name for name in IDS if name in columns), None)
    for number, row in enumerate(read_table(path, blank=True), 1):
        if isinstance(row, Bad):
            raise UserError(str(row), key=row.place, code=row.reason.replace(" ", "-"))
        title, text = row.value.get("title") or "", row.value.get("text")
        if not isinstance(title, str) or not isinstance(text, str):
            raise UserError(f"{row.place}: the text is {text!r:.60}. Write a string.", code="wrong-columns")
        yield Text(str(number if id_column is None else row.value.get(id_column)), document_text(title, text))


def _lines() -> Iterator[Text]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield Text(str(number), line.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input:{number}: the line is not UTF-8 ({error.reason} at byte {error.start}). "
                "Convert the text (iconv -f CP1252 -t UTF-8).",
                code="not-utf8",
            ) from None


def by_id(path: Path) -> dict[str, str]:
    """Read the texts of a table by id. UserError if two have the same id."""
    texts: dict[str, str] = {}
    for name, text in read_texts(path):
        if texts.setdefault(name, text) != text:
            raise UserError(f"{path}: two texts have the id {name!r}. Give each its own id.", code="duplicate")
    return texts
