"""BEIR folders."""

import json
from pathlib import Path

import pytest

from sparring.components.sources.records import UNJUDGED
from tests.support.sources import beir, source, without_place


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_beir(tmp_path: Path, gz: str) -> None:
    result = source(format="beir", path=str(beir(tmp_path, gz=gz)))
    names = [f"corpus.jsonl{gz}", f"queries.jsonl{gz}", f"qrels/test.tsv{gz}", f"qrels/train.tsv{gz}"]
    assert list(result.files()) == names
    assert without_place(result.read_documents()) == [
        ("d1", "One", "first"),
        ("d2", "", "second\u2028line"),
        ("3", "Three", ""),
    ]
    assert without_place(result.read_queries()) == [
        ("q1", "one?", ["1", "I"], "train"),
        ("q2", "two?", [], "test"),
        ("q3", "?", [], UNJUDGED),
    ]
    assert list(result.read_qrels()) == [
        ("q2", "d2", 2, "test", f"{tmp_path}/qrels/test.tsv{gz}:2"),
        ("q2", "3", 0, "test", f"{tmp_path}/qrels/test.tsv{gz}:3"),
        ("q1", "d1", 1, "train", f"{tmp_path}/qrels/train.tsv{gz}:2"),
    ]


@pytest.mark.parametrize(
    ("neighbour", "answers"), [(["a"], ["a"]), ({"text": ["a"], "answer_start": [3]}, ["a"]), ("a", []), ([1], [])]
)
def test_answers_beside_the_text_are_read_where_they_are_texts(
    tmp_path: Path, neighbour: object, answers: list[str]
) -> None:
    folder = beir(tmp_path)
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "one?", "answers": neighbour}) + "\n")
    assert without_place(source(format="beir", path=str(folder)).read_queries()) == [("q1", "one?", answers, "train")]


def test_what_an_editor_leaves_is_no_split(tmp_path: Path) -> None:
    folder = beir(tmp_path)
    for name in ("test.tsv.bak", "._test.tsv", "train.tsv~", "notes.txt"):
        (folder / "qrels" / name).write_bytes(b"\xff\xfe")
    assert [name for name in source(format="beir", path=str(folder)).files() if name.startswith("qrels")] == [
        "qrels/test.tsv",
        "qrels/train.tsv",
    ]


def test_beir_reads_chosen_splits_under_our_names(tmp_path: Path) -> None:
    result = source(format="beir", path=str(beir(tmp_path)), splits={"dev": "test"})
    assert list(result.files()) == ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"]
    assert without_place(result.read_queries()) == [("q2", "two?", [], "dev")]
    assert {record[3] for record in result.read_qrels()} == {"dev"}
