"""Tables in Parquet files: our own tables and those of others."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.sources.base import Source
from tests.support.errors import refused
from tests.support.sources import source, without_place, write

DOCUMENTS: dict[str, list[Any]] = {"doc_id": ["a", "b"], "title": ["A", None], "text": ["x", "y"]}
QUERIES: dict[str, list[Any]] = {
    "query_id": ["p", "q"],
    "text": ["p?", "q?"],
    "answers": [["1"], None],
    "split": ["train", "test"],
}
QRELS: dict[str, list[Any]] = {
    "query_id": ["p", "q"],
    "doc_id": ["a", "b"],
    "relevance": [1, 2],
    "split": ["train", "test"],
}


def parquet(**keys: Any) -> Source:
    """A source of Parquet files."""
    files = {name: f"{name}.parquet" for name in ("documents", "queries", "qrels")}
    return source(format="tables", **{**files, **keys})


def table(columns: dict[str, list[Any]], *, renamed: dict[str, str] | None = None, without: str = "") -> pa.Table:
    """A table, some columns under other names."""
    return pa.table({(renamed or {}).get(name, name): cells for name, cells in columns.items() if name != without})


def test_parquet_of_our_own_tables(tmp_path: Path) -> None:
    for name, columns in {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS}.items():
        pq.write_table(table(columns), tmp_path / f"{name}.parquet")
    result = parquet(path=str(tmp_path))
    assert list(result.files()) == ["documents.parquet", "queries.parquet", "qrels.parquet"]
    assert list(result.read_documents()) == [
        ("a", "A", "x", f"{tmp_path}/documents.parquet: row 1"),
        ("b", "", "y", f"{tmp_path}/documents.parquet: row 2"),
    ]
    assert without_place(result.read_queries()) == [("p", "p?", ["1"], "train"), ("q", "q?", [], "test")]
    assert without_place(result.read_qrels()) == [("p", "a", 1, "train"), ("q", "b", 2, "test")]
    chosen = parquet(path=str(tmp_path), splits={"dev": "test"})
    assert without_place(chosen.read_queries()) == [("q", "q?", [], "dev")]
    assert without_place(chosen.read_qrels()) == [("q", "b", 2, "dev")]


def test_parquet_of_other_tables(tmp_path: Path) -> None:
    for part in range(2):
        rows = table({name: cells[part : part + 1] for name, cells in DOCUMENTS.items()}, renamed={"doc_id": "id"})
        pq.write_table(rows, tmp_path / f"part-{part}.parquet")
    pq.write_table(table(QUERIES, without="split"), tmp_path / "queries.parquet")
    pq.write_table(table(QRELS, without="split"), tmp_path / "qrels.parquet")
    keys: dict[str, Any] = {"documents": "part-*.parquet", "columns": {"documents": {"doc_id": "id"}}}
    result = parquet(path=str(tmp_path), split="test", **keys)
    assert without_place(result.read_documents()) == [("a", "A", "x"), ("b", "", "y")]
    assert without_place(result.read_queries()) == [("p", "p?", ["1"], "test"), ("q", "q?", [], "test")]
    with refused("qrels.parquet", "no-split"):
        list(parquet(path=str(tmp_path), **keys).read_queries())
    with refused("part-0.parquet", "wrong-columns", "'body'"):
        list(parquet(path=str(tmp_path), **(keys | {"columns": {"documents": {"text": "body"}}})).read_documents())
    twice = pa.table([["a"], ["x"], ["y"]], names=["doc_id", "text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with refused("twice.parquet", "wrong-columns", "'text'"):
        list(parquet(path=str(tmp_path), documents="twice.parquet").read_documents())
    wrong = {"documents": {"doc": "id"}}
    with refused("columns", "unknown-column", "'doc'"):
        list(parquet(path=str(tmp_path), **(keys | {"columns": wrong})).read_documents())


def test_parquet_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "documents.parquet", "doc_id")
    with refused("documents.parquet", "other-format"):
        list(parquet(path=str(tmp_path)).read_documents())


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    ids, texts = pa.array(["a", "b"]), pa.array([b"fine", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"doc_id": ids, "text": texts}), tmp_path / "documents.parquet")
    with refused("documents.parquet", "other-format", "'utf-8'"):
        list(parquet(path=str(tmp_path)).read_documents())


def test_the_queries_splits_hold_for_the_qrels_and_neither_need_be_there(tmp_path: Path) -> None:
    pq.write_table(table(DOCUMENTS), tmp_path / "documents.parquet")
    pq.write_table(table(QUERIES), tmp_path / "queries.parquet")
    judged = {**QRELS, "query_id": ["p", "x"]}
    pq.write_table(table(judged, without="split"), tmp_path / "qrels.parquet")
    result = parquet(path=str(tmp_path))
    assert without_place(result.read_qrels()) == [("p", "a", 1, "train"), ("x", "b", 2, "unjudged")]
    alone = parquet(path=str(tmp_path), queries=None, qrels=None)
    assert list(alone.files()) == ["documents.parquet"]
    assert list(alone.read_queries()) == list(alone.read_qrels()) == []


def test_declared_tables_without_rows_are_refused(tmp_path: Path) -> None:
    for name, columns in {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS}.items():
        pq.write_table(table(columns).slice(0, 1 if name == "documents" else 0), tmp_path / f"{name}.parquet")
    result = parquet(path=str(tmp_path))
    with refused("queries.parquet", "no-rows"):
        list(result.read_queries())
    with refused("qrels.parquet", "no-rows"):
        list(result.read_qrels())
