"""Files of DPR."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.sources.base import Source
from sparring.components.sources.records import Bad
from tests.support.sources import source, without_place, write


def dpr(folder: Path, *, indent: int | None = None) -> Path:
    """Files of DPR where the gold document of the first question is the one about Paris, with the id 2."""
    rows = ["id\ttext\ttitle", '1\t"Berlin is ""the"" capital of Germany."\tBerlin', "2\tParis is in France.\tParis"]
    write(folder / "psgs.tsv", *rows, '3\tRome has seven hills.\t"""Rome"""')
    paris = {"title": "Paris", "text": "Paris is in France.", "passage_id": "2"}
    entries = [
        {
            "question": "where is paris",
            "answers": ["France"],
            "positive_ctxs": [paris, {"title": "Berlin", "text": "", "psg_id": 1}],
            "negative_ctxs": [],
            "hard_negative_ctxs": [paris, {"title": "Rome", "text": "Rome has seven hills.", "passage_id": "3"}],
        },
        {"question": "no gold?", "answers": ["é"], "positive_ctxs": [], "hard_negative_ctxs": []},
    ]
    (folder / "train.json").write_text(json.dumps(entries, indent=indent, ensure_ascii=False))
    write(folder / "test.csv", "who\t['Hilbert', \"O'Neill\"]", 'what\t"[""a \\d""]"')
    return folder


def dpr_source(folder: Path, **keys: Any) -> Source:
    """The source of `dpr`."""
    return source(
        format="dpr",
        path=str(folder),
        documents="psgs.tsv",
        retriever={"train": "train.json"},
        questions={"test": "test.csv"},
        **keys,
    )


@pytest.mark.parametrize("indent", [None, 4])
def test_dpr(tmp_path: Path, indent: int | None) -> None:
    result = dpr_source(dpr(tmp_path, indent=indent))
    assert without_place(result.read_documents()) == [
        ("1", "Berlin", 'Berlin is "the" capital of Germany.'),
        ("2", "Paris", "Paris is in France."),
        ("3", '"Rome"', "Rome has seven hills."),
    ]
    assert without_place(result.read_queries()) == [
        ("train-0", "where is paris", ["France"], "train"),
        ("train-1", "no gold?", ["é"], "train"),
        ("test-0", "who", ["Hilbert", "O'Neill"], "test"),
        ("test-1", "what", ["a \\d"], "test"),
    ]


def test_dpr_straightens_a_questions_apostrophes(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("who\u2019s there\t['it\u2019s me']\n")
    keys = {"format": "dpr", "path": str(tmp_path), "questions": {"test": "q.csv"}}
    (straight,) = source(**keys).read_queries()
    (typed,) = source(**keys, straight_apostrophes=False).read_queries()
    assert (straight.text, straight.answers) == ("who's there", ["it\u2019s me"])
    assert typed.text == "who\u2019s there"


def test_dpr_gold_and_documents_share_one_id_space(tmp_path: Path) -> None:
    result = dpr_source(dpr(tmp_path), positives=1)
    titles = {record.doc_id: record.title for record in result.read_documents() if not isinstance(record, Bad)}
    gold = next(result.read_qrels())
    assert not isinstance(gold, Bad)
    assert titles[gold.doc_id] == "Paris"


def test_dpr_takes_as_many_contexts_as_it_is_told(tmp_path: Path) -> None:
    folder = dpr(tmp_path)
    judged = [("train-0", "2", 1, "train"), ("train-0", "1", 1, "train"), ("train-0", "3", 0, "train")]
    assert without_place(dpr_source(folder).read_qrels()) == judged[:2]
    assert without_place(dpr_source(folder, positives=1).read_qrels()) == judged[:1]
    assert without_place(dpr_source(folder, hard_negatives=5).read_qrels()) == judged


@pytest.mark.parametrize("answers", ["__import__('os').getcwd()", "['a'", "[" * 3000, "['a'] + ['b']"])
def test_dpr_answers_are_literals_and_nothing_is_run(tmp_path: Path, answers: str) -> None:
    write(tmp_path / "q.csv", f"who\t{answers}")
    (bad,) = source(format="dpr", path=str(tmp_path), questions={"test": "q.csv"}).read_queries()
    assert isinstance(bad, Bad)
    assert bad.reason == "answers that are not a literal"
    assert bad.place == f"{tmp_path}/q.csv:1"


def test_dpr_answers_must_be_a_list(tmp_path: Path) -> None:
    write(tmp_path / "q.csv", "who\t'a'")
    (bad,) = source(format="dpr", path=str(tmp_path), questions={"test": "q.csv"}).read_queries()
    assert isinstance(bad, Bad)
    assert bad.reason == "answers that are not a list of texts"


@pytest.mark.parametrize(("file", "nothing", "key"), [("train.json", "[]", "retriever"), ("test.csv", "", "questions")])
def test_dpr_files_without_questions_are_refused(tmp_path: Path, file: str, nothing: str, key: str) -> None:
    result = dpr_source(dpr(tmp_path))
    (tmp_path / file).write_text(nothing)
    with pytest.raises(UserError, match=rf"{file}: the file has no questions. Use .* or no '[a-z]+' in `{key}`"):
        list(result.read_queries())


def test_ids_may_stand_behind_wiki(tmp_path: Path) -> None:
    """In questions and in passages, one of them or both."""
    for passage, named in (("7", "wiki:7"), ("wiki:7", "7"), ("wiki:7", "wiki:7")):
        write(tmp_path / "psgs.tsv", "id\ttext\ttitle", f"{passage}\tParis is in France.\tParis")
        requests = [{"question": "where is paris", "positive_ctxs": [{"passage_id": named, "id": "another's"}]}]
        (tmp_path / "train.json").write_text(json.dumps(requests))
        result = source(format="dpr", path=str(tmp_path), documents="psgs.tsv", retriever={"train": "train.json"})
        assert [document[0] for document in result.read_documents()] == ["7"]
        assert [qrel[1] for qrel in result.read_qrels()] == ["7"]
