"""MS MARCO folders."""

from pathlib import Path

import pytest

from sparring.components.config import UserError
from tests.support.sources import source, without_place, write


def msmarco(folder: Path) -> Path:
    """An MS MARCO folder with a training set that has judgements and an evaluation set that has none."""
    write(folder / "collection.tsv", '0\tA "quoted passage', "1\tAnother")
    write(folder / "queries.train.tsv", "10\tfirst query", "11\tsecond query")
    write(folder / "queries.dev.small.tsv.gz", "12\tthird query")
    write(folder / "qrels.train.tsv", "10\t0\t0\t1", "11 0 1 1")
    return folder


def test_msmarco(tmp_path: Path) -> None:
    result = source(format="msmarco", path=str(msmarco(tmp_path)))
    assert without_place(result.read_documents()) == [("0", "", 'A "quoted passage'), ("1", "", "Another")]
    assert without_place(result.read_queries()) == [
        ("12", "third query", [], "dev.small"),
        ("10", "first query", [], "train"),
        ("11", "second query", [], "train"),
    ]
    assert without_place(result.read_qrels()) == [("10", "0", 1, "train"), ("11", "1", 1, "train")]


def test_msmarco_splits_that_are_chosen_need_qrels(tmp_path: Path) -> None:
    result = source(format="msmarco", path=str(msmarco(tmp_path)), splits={"dev": "dev.small"})
    assert result.missing() == [str(tmp_path / "qrels.dev.small.tsv")]


def test_msmarco_documents_have_a_title(tmp_path: Path) -> None:
    write(tmp_path / "collection.tsv", "D1\thttp://x\tTitle\tBody")
    result = source(format="msmarco", path=str(tmp_path), columns=["doc_id", "url", "title", "text"])
    assert without_place(result.read_documents()) == [("D1", "Title", "Body")]


@pytest.mark.parametrize(("file", "role"), [("queries.train.tsv", "queries"), ("qrels.train.tsv", "qrels")])
def test_msmarco_files_without_lines_are_refused(tmp_path: Path, file: str, role: str) -> None:
    result = source(format="msmarco", path=str(msmarco(tmp_path)))
    (tmp_path / file).write_text("")
    with pytest.raises(UserError, match=rf"{file}: the file has no {role}\. Use a file with {role}, or "):
        list(result.read_queries()), list(result.read_qrels())
