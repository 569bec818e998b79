"""MultiReQA's sentences over the MRQA shared task's contexts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.sources.records import Bad
from sparring.workflows.steps.ingest import ingest
from tests.support import toy
from tests.support.sources import source, without_place, write

TEXT = "Ada was born in 1815. She wrote notes. In 1843 they came out."


def asked(qid: str, question: str, *spans: tuple[int, int]) -> dict[str, Any]:
    """A question of the shared task, whose answers begin and end at these places, the ends included."""
    result = [
        {"text": TEXT[start : end + 1], "char_spans": [[start, end]], "token_spans": [[0, 0]]} for start, end in spans
    ]
    answers = [item["text"] for item in result]
    return {"qid": qid, "question": question, "answers": answers, "detected_answers": result}


def sentence(questions: str, number: int, start: int, end: int) -> str:
    return json.dumps({"candidate_id": f"SQuAD_{questions}/_{number}", "response_start": start, "response_end": end})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A context of three questions, one with no sentence that is listed, and a context of another split. Sentences do
    not stand in the order of contexts, nor the context's questions in that of its id."""
    training = [
        {
            "context": TEXT,
            "qas": [
                asked("b", "what?", (26, 36)),
                asked("a", "when?", (16, 19), (42, 45)),
                asked("c", "across?", (16, 45)),
            ],
        },
        {"context": "No sentence of it is listed.", "qas": [asked("x", "none?", (0, 1))]},
    ]
    header = {"header": {"dataset": "SQuAD", "mrqa_split": "train"}}
    write(tmp_path / "mrqa/train/SQuAD.jsonl.gz", *map(json.dumps, [header, *training]))
    write(tmp_path / "mrqa/dev/SQuAD.jsonl", json.dumps({"context": TEXT, "qas": [asked("d", "who?", (0, 2))]}))
    write(tmp_path / "dev/SQuAD/candidates.json.gz", sentence("d", 0, 0, 21))
    places = [(10, 39, 61), (0, 0, 21), (2, 22, 38)]
    write(tmp_path / "train/SQuAD/candidates.json", *(sentence("a/b/c", *place) for place in places))
    return tmp_path


def read(folder: Path, **keys: Any) -> Any:
    return source(format="multireqa", path=str(folder), name="SQuAD", **keys)


def test_sentences_are_cut_from_their_contexts_and_judged_by_the_answers_in_them(folder: Path) -> None:
    """In the order of their numbers. No answer of the question across two sentences lies in one."""
    result = read(folder)
    assert result.missing() == []
    assert without_place(result.read_documents()) == [
        ("SQuAD_a/b/c/_0", "", "Ada was born in 1815."),
        ("SQuAD_a/b/c/_2", "", "She wrote notes."),
        ("SQuAD_a/b/c/_10", "", "In 1843 they came out."),
        ("SQuAD_d/_0", "", "Ada was born in 1815."),
    ]
    assert without_place(result.read_queries()) == [
        ("b", "what?", ["wrote notes"], "train"),
        ("a", "when?", ["1815", "1843"], "train"),
        ("d", "who?", ["Ada"], "test"),
    ]
    assert without_place(result.read_qrels()) == [
        ("b", "SQuAD_a/b/c/_2", 1, "train"),
        ("a", "SQuAD_a/b/c/_0", 1, "train"),
        ("a", "SQuAD_a/b/c/_10", 1, "train"),
        ("d", "SQuAD_d/_0", 1, "test"),
    ]


@pytest.mark.parametrize(("start", "end", "first"), [(16, 20, True), (16, 21, False), (0, 0, True), (21, 21, False)])
def test_an_answer_lies_in_a_sentence_as_a_whole(folder: Path, start: int, end: int, first: bool) -> None:
    """The sentence's last character is at 20, and the end of an answer is a part of it."""
    write(folder / "mrqa/dev/SQuAD.jsonl", json.dumps({"context": TEXT, "qas": [asked("d", "who?", (start, end))]}))
    assert [qrel[0] for qrel in read(folder, splits={"test": "dev"}).read_qrels()] == (["d"] if first else [])


def test_ingested_it_is_a_collection_with_splits(folder: Path, tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    summary = ingest(out, toy.INLINE, source=read(folder))
    assert summary["documents"] == 4
    assert summary["queries"] == {"train": 2, "test": 1}
    assert summary["judgements"] == {"train": 3, "test": 1}
    (test := tmp_path / "test").mkdir()
    assert ingest(test, toy.INLINE, source=read(folder, splits={"test": "dev"}))["documents"] == 1


def test_the_shared_tasks_files_may_be_called_otherwise(folder: Path) -> None:
    result = read(folder, contexts="mrqa/{split}/{name}-web.jsonl", splits={"train": "train"})
    assert list(result.files()) == ["train/SQuAD/candidates.json", "mrqa/train/SQuAD-web.jsonl"]
    with pytest.raises(UserError, match=r"contexts: got 'mrqa/\{set\}'\. Use a file name in which only \{split\}"):
        read(folder, contexts="mrqa/{set}").files()


def test_what_does_not_fit_together_is_told_with_its_place(folder: Path) -> None:
    rows = [sentence("d", 0, 0, 21), sentence("d", 1, 50, 99), sentence("e", 0, 0, 1), '{"candidate_id": "SQuAD_f"}']
    write(folder / "dev/SQuAD/candidates.json.gz", *rows)
    contexts = [{"context": TEXT, "qas": [asked("d", "who?", (0, 2))]}, {"context": TEXT, "qas": [{"qid": "g"}]}]
    write(folder / "mrqa/dev/SQuAD.jsonl", *map(json.dumps, contexts))
    listed, texts = folder / "dev/SQuAD/candidates.json.gz", folder / "mrqa/dev/SQuAD.jsonl"
    report = [
        str(document) for document in read(folder, splits={"test": "dev"}).read_documents() if isinstance(document, Bad)
    ]
    assert report == [
        f"{listed}:4: wrong columns (expected candidate_id, response_start and response_end)",
        f"{texts}:1: sentence beyond its context 'SQuAD_d/_1' (it ends at 61)",
        f"{texts}:2: wrong columns (expected context and qas, with qid and detected_answers)",
        f"{listed}:3: sentence of a missing context ({texts} has none of its questions)",
    ]
