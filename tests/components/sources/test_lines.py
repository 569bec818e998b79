"""Text files with a document a line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sparring.components.sources.base import declared
from sparring.components.sources.records import Bad, Document


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_every_line_that_is_not_empty_is_a_document(tmp_path: Path, packed: bool) -> None:
    path, text = tmp_path / "texts.txt", "one\n\n  two words \n\té\n".encode()
    if packed:
        path.with_name("texts.txt.gz").write_bytes(gzip.compress(text))
    else:
        path.write_bytes(text)
    source = declared({"format": "lines", "path": str(path)})
    result = [
        (document.doc_id, document.text) for document in source.read_documents() if isinstance(document, Document)
    ]
    assert result == [("1", "one"), ("3", "  two words "), ("4", "\té")]
    assert not [*source.read_queries(), *source.read_qrels()]


def test_a_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"one\n\xff\n")
    bad = [
        document
        for document in declared({"format": "lines", "path": str(path)}).read_documents()
        if isinstance(document, Bad)
    ]
    assert [(item.reason, item.place) for item in bad] == [("text that is not UTF-8", f"{path}:2")]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    assert declared({"format": "lines", "path": str(path)}).missing() == [str(path)]
