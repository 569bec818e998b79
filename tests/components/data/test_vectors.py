"""Vectors read by rows: those that are asked for, from whichever file, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.config import Damaged, UserError
from sparring.components.data import vectors as module
from sparring.components.data.vectors import DocumentVectors, Lists, QueryVectors, context_vectors, document_shards
from tests.support import toy

DOCUMENTS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float16)
QUERIES = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float16)


def write(folder: Path, documents: np.ndarray = DOCUMENTS, cuts: tuple[int, ...] = (20, 27)) -> Path:
    toy.write_document_vectors(folder, np.split(documents, cuts))
    np.save(folder / "queries.npy", QUERIES)
    (folder / "queries.json").write_text(json.dumps([f"q{i}" for i in range(len(QUERIES))]))
    return folder


def test_rows_come_from_whichever_file_has_them(tmp_path: Path) -> None:
    vectors, queries = DocumentVectors(write(tmp_path)), QueryVectors(tmp_path)
    assert len(vectors) == 50
    for rows in ([0], [19, 20], [0, 19, 20, 26, 27, 49], [30, 31], list(range(50))):
        selection = vectors[np.array(rows)]
        assert selection.dtype == np.float16
        np.testing.assert_array_equal(selection, DOCUMENTS[rows])
    np.testing.assert_array_equal(queries[np.array([5, 0, 5])], QUERIES[[5, 0, 5]])
    with pytest.raises(IndexError, match="no row 50 among the vectors of 50 documents"):
        vectors[np.array([3, 50])]


def test_files_come_in_the_order_of_the_record_not_of_their_names(tmp_path: Path) -> None:
    """From the 100,000th on, names have a digit more: as text 100000 comes before 99999."""
    write(tmp_path)
    names = ["documents-99999.npy", "documents-100000.npy", "documents-00000.npy"]
    for name, part in zip(names, np.split(DOCUMENTS, (20, 27)), strict=True):
        np.save(tmp_path / name, part)
    (tmp_path / "documents.json").write_text(json.dumps(dict(zip(names, (20, 7, 23), strict=True))))
    np.testing.assert_array_equal(np.concatenate(list(document_shards(tmp_path))), DOCUMENTS)
    np.testing.assert_array_equal(DocumentVectors(tmp_path)[np.arange(50)], DOCUMENTS)


def test_files_without_asked_rows_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, opened, load = DocumentVectors(write(tmp_path)), [], np.load
    monkeypatch.setattr(np, "load", lambda path, **options: opened.append(path.name) or load(path, **options))
    vectors[np.array([3, 40, 41])]
    assert opened == ["documents-00000.npy", "documents-00002.npy"]


@pytest.mark.parametrize("held", [1, 40, 2**20])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_contexts_are_all_queries_with_their_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, batch: int
) -> None:
    monkeypatch.setattr(module, "MAX_NUMBERS", held)
    vectors = DocumentVectors(write(tmp_path))
    queries, documents = np.array([5, 2, 2, 0, 1]), np.random.default_rng(2).integers(0, 50, (5, 3))
    parts: list[Any] = list(context_vectors(QueryVectors(tmp_path), vectors, queries, documents, batch))
    assert [i for part, _, _ in parts for i in range(5)[part]] == [0, 1, 2, 3, 4]
    assert all(len(query_rows) == len(document_rows) <= batch for _, query_rows, document_rows in parts)
    np.testing.assert_array_equal(np.concatenate([query_rows for _, query_rows, _ in parts]), QUERIES[queries])
    np.testing.assert_array_equal(
        np.concatenate([document_rows for _, _, document_rows in parts]), DOCUMENTS[documents]
    )


def test_what_is_no_finite_number_is_refused(tmp_path: Path) -> None:
    documents = DOCUMENTS.copy()
    documents[7, 2] = np.nan
    vectors = DocumentVectors(write(tmp_path, documents))
    assert list(vectors.lists(np.array([[6, 8]]), 4))
    with pytest.raises(ValueError, match="the vectors of the documents contain values that are not finite"):
        list(vectors.lists(np.array([[6, 7]]), 4))


def test_queries_are_found_by_id_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    queries = QueryVectors(write(tmp_path))
    assert queries.rows(pa.array(["q3", "q0", "q3"])).tolist() == [3, 0, 3]
    assert queries.rows(pa.chunked_array([["q3"], ["q1"]])).tolist() == [3, 1]
    with pytest.raises(UserError, match=r"^the query q9 was not encoded"):
        queries.rows(pa.array(["q3", "q9"]))


def test_queries_of_several_splits_stand_one_after_another(tmp_path: Path) -> None:
    for split, part in {"train": QUERIES[:4], "test": QUERIES[4:]}.items():
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "queries.npy", part)
        (tmp_path / split / "queries.json").write_text(json.dumps([f"{split}{i}" for i in range(len(part))]))
    queries = QueryVectors(tmp_path / "train", tmp_path / "test")
    rows = queries.rows(pa.array(["test1", "train0", "test0", "train3"]))
    assert rows.tolist() == [5, 0, 4, 3]
    np.testing.assert_array_equal(queries[rows], QUERIES[[5, 0, 4, 3]])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    shards = document_shards(write(tmp_path))
    path = next(tmp_path.glob("documents-*.npy"))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=rf"^{path}: the file is truncated or has no array"):
        list(shards)


def test_no_vectors_is_an_error_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"documents\.json: there is no such file"):
        DocumentVectors(tmp_path)


def test_lists_are_read_by_parts_and_padded(tmp_path: Path) -> None:
    Lists(np.array([4, 5, 6]), np.array([10, 11, 20, 30, 31, 32]), np.array([0, 2, 3, 6])).save(tmp_path)
    lists = Lists.load(tmp_path, 1, 3)
    assert lists.queries.tolist() == [5, 6]
    assert lists.mask.tolist() == [[True, False, False], [True, True, True]]
    assert lists.padded(lists.documents).tolist() == [[20, 0, 0], [30, 31, 32]]
    assert lists.padded(lists.documents)[lists.mask].tolist() == [20, 30, 31, 32]
    assert Lists.load(tmp_path, 0, 3).padded(np.ones(6, bool)).tolist() == Lists.load(tmp_path, 0, 3).mask.tolist()
    assert Lists.load(tmp_path, 2, 2).mask.shape == (0, 0)
