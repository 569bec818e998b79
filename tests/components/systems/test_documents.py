"""The documents of a system's folder: what is read is what was written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import DOCUMENTS
from sparring.components.systems import documents

ROWS = {
    "doc_id": ["b", "\U0001f98a", "a", 'quote"', "é", "\ufffd"],
    "title": ["", "fox", "lines\u2028and\u0085breaks", "", "nul\0", "t"],
    "text": ["a\nb\r\nc", "\U0001f98a", "x" * 3_000_000, "\\", "", "[1]"],
}


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    table, file = tmp_path / "documents.parquet", tmp_path / "documents.jsonl"
    pq.write_table(pa.table(ROWS, schema=DOCUMENTS), table)
    documents.write(table, file)
    assert file.read_bytes().count(b"\n") == 6
    memory = documents.InMemory
    for read in (memory.of_folder(file, 6), memory.of_table(table), documents.InTable(table)):
        assert [read.place(item) for item in ("no", *sorted(ROWS["doc_id"]))] == [None, *range(6)]
        assert read.sorted.to_pylist() == sorted(ROWS["doc_id"])
        assert read.texts(["é", "a", "\U0001f98a", "b", "\ufffd", 'quote"']) == {
            item: (title, text) for item, title, text in zip(*ROWS.values(), strict=True)
        }
        assert [ROWS["doc_id"][row] for row in read.by_id] == sorted(ROWS["doc_id"])


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}\n{\n", "not a JSON object a line"), ('{"_id": "a", "title": "", "text": ""}\n', "1 documents")],
)
def test_a_file_of_something_else(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "documents.jsonl").write_text(text)
    with pytest.raises(UserError, match=says):
        documents.InMemory.of_folder(tmp_path / "documents.jsonl", 2)
