"""`encode`: texts to the vectors that a run itself computes, from its retriever alone."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.vectors import DocumentVectors
from sparring.workflows.command_line import main
from tests.support import tiny
from tests.support.tiny import Place, Said

RETRIEVER = ["--system", "retriever 1"]


@pytest.fixture(scope="module")
def exported(played: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `export` writes for the run."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    assert played("export", str(folder), "--system", "ranker over retriever 1") == 0
    return folder


def documents(place: Place) -> Path:
    return place.artifact("data") / "documents.parquet"


def similar(vectors: np.ndarray, expected: np.ndarray) -> None:
    assert vectors.dtype == expected.dtype
    np.testing.assert_allclose(vectors.astype(np.float32), expected.astype(np.float32), atol=2e-3)


def test_documents_get_the_vectors_of_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    before = tiny.contents(played.store)
    file = tmp_path / "vectors.npy"
    assert played("encode", str(documents(played)), "-o", str(file), *RETRIEVER) == 0
    stored = DocumentVectors(played.artifact("retriever 1 vectors"))
    expected = np.asarray(stored[np.arange(40)])
    similar(np.load(file), expected)
    assert said()[1] == f"{file}: 40 vectors of {expected.shape[1]} numbers ({expected.dtype})\n"
    assert tiny.contents(played.store) == before


def test_json_lines_have_the_ids_of_the_table(played: Place, tmp_path: Path) -> None:
    table = pq.read_table(documents(played)).slice(0, 3)
    pq.write_table(table, tmp_path / "three.parquet")
    files = tmp_path / "three.npy", tmp_path / "three.jsonl"
    for file in files:
        assert played("encode", str(tmp_path / "three.parquet"), "-o", str(file), *RETRIEVER) == 0
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [row["id"] for row in rows] == table["doc_id"].to_pylist()
    assert np.array_equal(np.array([row["vector"] for row in rows], np.load(files[0]).dtype), np.load(files[0]))


def test_lines_of_standard_input_are_numbered(played: Place, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"barami comi\n\ncomi\r\n")))
    assert played("encode", "--side", "query", *RETRIEVER) == 0
    rows = [json.loads(line) for line in said()[0].splitlines()]
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert len({len(row["vector"]) for row in rows}) == 1


def test_a_run_an_exported_system_and_an_exported_model_agree(played: Place, exported: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("barami comi\ncomi\n")
    places = [str(played.config), str(exported / "system"), str(exported / "retriever")]
    vectors = []
    for number, place in enumerate(places):
        file = tmp_path / f"{number}.npy"
        words = RETRIEVER if number == 0 else []
        profile = ["--cluster", str(played.folder / "inline.yaml")]
        assert main([*played.words("encode")[:4], "encode", place, str(texts), "-o", str(file), *words, *profile]) == 0
        vectors.append(np.load(file).astype(np.float32))
    for vector in vectors[1:]:
        np.testing.assert_allclose(vector, vectors[0], atol=1e-2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"body": ["a"]}, "it has the columns body. Call the column with the texts `text`."),
        ({"text": pa.array([], pa.string())}, "there are no texts. Give a file that has some."),
        ({"text": [3]}, "row 1: the text is 3. Write a string."),
    ],
)
def test_a_table_without_texts_is_refused(
    played: Place, tmp_path: Path, said: Said, table: dict[str, object], message: str
) -> None:
    file = tmp_path / "table.parquet"
    pq.write_table(pa.table(table), file)
    assert played("encode", str(file), *RETRIEVER) == 2
    assert said()[1] == f"error: {file}: {message}\n"


def test_a_model_that_does_not_encode_is_refused(played: Place, exported: Path, tmp_path: Path, said: Said) -> None:
    assert main(["encode", str(exported / "ranker"), "-"]) == 2
    assert said()[1].endswith(
        "/ranker: the folder holds a model of the kind cross_encoder. Give the folder of a retriever.\n"
    )
    assert played("encode", "-o", str(tmp_path / "vectors.txt")) == 2
    assert said()[1] == f"error: --output: {tmp_path}/vectors.txt has another ending. Use .npy or .jsonl.\n"
    assert main(["encode", str(exported / "system"), *RETRIEVER]) == 2
    assert said()[1].endswith("is an exported folder. Use --system with the config of a run.\n")
    assert played("encode", "--system", "BM25") == 2
    assert "--system: 'BM25' has no retriever. Name a system that has one: " in said()[1]


def test_a_missing_file_is_named(played: Place, said: Said, tmp_path: Path) -> None:
    assert played("encode", str(tmp_path / "none.csv"), *RETRIEVER) == 2
    assert "none.csv: there is no such file" in said()[1]
