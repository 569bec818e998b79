"""Data sets of Hugging Face."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from sparring.components.sources.records import UNJUDGED
from tests.support.errors import refused
from tests.support.sources import source, without_place


def test_huggingface_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    corpus = datasets.Dataset.from_dict({"_id": ["a", "b"], "title": ["A", "B"], "text": ["x", "y"]})
    corpus.save_to_disk(tmp_path / "corpus")
    parts = {"train": {"qid": [1], "did": ["a"], "score": [1]}, "test": {"qid": [2], "did": ["b"], "score": [3]}}
    datasets.DatasetDict({name: datasets.Dataset.from_dict(columns) for name, columns in parts.items()}).save_to_disk(
        tmp_path / "qrels"
    )
    queries = {"query_id": [1, 2, 3], "text": ["one", "two", "three"]}
    datasets.Dataset.from_dict(queries).save_to_disk(tmp_path / "queries")
    columns = {"query_id": "qid", "doc_id": "did", "relevance": "score"}
    keys: dict[str, Any] = {
        "documents": {"path": str(tmp_path / "corpus"), "columns": {"doc_id": "_id"}},
        "queries": {"path": str(tmp_path / "queries")},
        "qrels": {
            split: {"path": str(tmp_path / "qrels"), "split": split, "columns": columns} for split in ("train", "test")
        },
    }
    result = source(format="huggingface", **keys)
    assert any(name.endswith(".arrow") for name in result.files())
    assert without_place(result.read_documents()) == [("a", "A", "x"), ("b", "B", "y")]
    assert without_place(result.read_queries()) == [
        ("1", "one", [], "train"),
        ("2", "two", [], "test"),
        ("3", "three", [], UNJUDGED),
    ]
    assert without_place(result.read_qrels()) == [("1", "a", 1, "train"), ("2", "b", 3, "test")]
    wrong = {"dev": {"path": str(tmp_path / "qrels"), "split": "dev"}}
    with refused("qrels", "unknown-split", "'dev'"):
        list(source(format="huggingface", **(keys | {"qrels": wrong})).read_qrels())
    second = {"path": str(tmp_path / "qrels" / "train"), "split": "test", "columns": columns}
    with refused("split", "no-splits", "'test'"):
        list(source(format="huggingface", **(keys | {"qrels": {"test": second}})).read_qrels())
    unknown = {"path": str(tmp_path / "queries"), "split": "test"}
    with refused("split", "no-splits", "'test'"):
        list(source(format="huggingface", **(keys | {"queries": unknown})).read_queries())
    none = datasets.Dataset.from_dict({"query_id": [], "text": []})
    none.save_to_disk(tmp_path / "none")
    with refused("none", "other-format"):
        list(source(format="huggingface", **(keys | {"queries": {"path": str(tmp_path / "none")}})).read_queries())
    with refused("corpus", "wrong-columns", "'doc_id'"):
        list(
            source(format="huggingface", **(keys | {"documents": {"path": str(tmp_path / "corpus")}})).read_documents()
        )


def test_a_pipe_in_a_saved_dataset_is_refused(tmp_path: Path) -> None:
    """It would be waited for without end."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"doc_id": ["a"], "text": ["x"]}).save_to_disk(tmp_path / "saved")
    file = next((tmp_path / "saved").glob("*.arrow"))
    file.unlink()
    os.mkfifo(file)
    table = {"path": str(tmp_path / "saved")}
    with refused(file.name, "not-a-file"):
        list(source(format="huggingface", documents=table, queries=table).read_documents())


def test_offsets_that_point_out_of_a_saved_dataset_are_refused(tmp_path: Path) -> None:
    """Arrow would read there, and the process would end."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"doc_id": ["a", "b", "c"], "text": ["x" * 5, "y" * 6, "z" * 8]}).save_to_disk(
        tmp_path / "saved"
    )
    (file,) = (tmp_path / "saved").glob("*.arrow")
    raw, ends = file.read_bytes(), struct.pack("<4i", 0, 5, 11, 19)
    assert raw.count(ends) == 1
    file.write_bytes(raw.replace(ends, struct.pack("<4i", 0, 5, 11, 2**30)))
    table = {"path": str(tmp_path / "saved")}
    result = source(format="huggingface", documents=table, queries=table)
    with refused("saved", "other-format"):
        list(result.read_documents())
