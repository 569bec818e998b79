"""`init` tells what each file is, and of which split: by its name, its columns and its first line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.config import UserError
from sparring.components.sources.base import declared
from sparring.workflows.command_line import main
from tests.support.recognised import DOCUMENTS, NOTE, QUERIES, jsonl, objects
from tests.support.sources import write
from tests.support.tiny import Said


@pytest.mark.parametrize("folder", ["", "asked"])
def test_names_of_files_tell_the_splits_of_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, folder: str
) -> None:
    """What nobody asks for yet lies beside them."""
    monkeypatch.chdir(tmp_path)
    for name, rows in {"faq": ["a?,A", "b?,B"], "valid": ["c?,C"], "test": ["d?,A"]}.items():
        write(tmp_path / "mine" / folder / f"{name}.csv", "Question,Answer", *rows)
    write(tmp_path / "mine" / "more.csv", "Nr,Answer", "1,D", "2,E")
    assert main(["init", "mine"]) == 0
    out = said()[0]
    assert "5 documents" in out
    for line in ("split train: 2 queries, 2 with", "split dev: 1 queries, 1 with", "split test: 1 queries, 1 with"):
        assert line in out
    files = {
        split: str(Path(folder, f"{name}.csv"))
        for split, name in {"train": "faq", "dev": "valid", "test": "test"}.items()
    }
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"] == {
        "format": "tables",
        "path": "mine",
        "documents": [*files.values(), "more.csv"],
        "queries": files,
        "paired": True,
        "columns": {"documents": {"text": "Answer"}, "queries": {"text": "Question"}},
    }


def test_names_of_files_tell_the_splits_of_queries_and_judgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine" / "documents.csv", "id,text", "a,A", "b,B")
    for split in ("train", "test"):
        write(tmp_path / "mine" / f"queries.{split}.csv", "id,question", f"{split}-1,what?")
        write(tmp_path / "mine" / "qrels" / f"{split}.csv", "query_id,doc_id", f"{split}-1,a")
    assert main(["init", "mine"]) == 0
    assert "split test: 1 queries, 1 with a relevant document" in said()[0]
    data = yaml.safe_load(Path("mine.yaml").read_text())["data"]
    assert data["queries"] == {"train": "queries.train.csv", "test": "queries.test.csv"}
    assert data["qrels"] == {"train": "qrels/train.csv", "test": "qrels/test.csv"}
    assert "split" not in data


def test_documents_in_several_files_are_one_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """And so are tables of a split each whose columns have unknown names."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine" / "old.tsv", "report\theading\tbody", f"r1\tA\t{NOTE} 1", f"r2\tB\t{NOTE} 2")
    jsonl(tmp_path / "mine" / "new.jsonl", {"body": f"{NOTE} 3", "heading": "C", "report": "r3"})
    for split, rows in {"train": ("r1", "r3"), "test": ("r2",)}.items():
        write(tmp_path / "mine" / f"asked-{split}.csv", "nr,ask", *(f"q{row},what of {row}?" for row in rows))
        write(tmp_path / "mine" / f"told-{split}.csv", "nr,by,useful", *(f"q{row},{row},2" for row in rows))
    assert main(["init", "mine"]) == 0
    out = said()[0]
    assert "3 documents: " in out
    assert "split train: 2 queries, 2 with a relevant document" in out
    assert "judgements by grade: 2: 3" in out
    data = yaml.safe_load(Path("mine.yaml").read_text())["data"]
    assert data["documents"] == ["new.jsonl", "old.tsv"]
    assert data["qrels"] == {"test": "told-test.csv", "train": "told-train.csv"}
    assert data["columns"]["qrels"] == {"query_id": "nr", "doc_id": "by", "relevance": "useful"}
    assert main(["plan", "mine.yaml"]) == 0


def test_how_to_count_words_of_judgements_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """A question a row and no ids; what is not said is not guessed."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine" / "notes.csv", "ref,body", *(f"n{number},{NOTE} {number}" for number in range(4)))
    rows = [
        (f"what of {number}?", f"n{number + more}", ("a bit", "yes")[more]) for number in range(3) for more in (0, 1)
    ]
    write(tmp_path / "mine" / "asked.csv", "ask,by,useful", *(",".join(row) for row in rows))
    assert main(["init", "mine"]) == 0
    out = said()[0]
    assert "3 queries: " in out
    assert "queries are numbered by row; to name one: " in out
    assert "  if an unread column holds relevance grades, set `columns: {qrels: {relevance: COLUMN}}`" in out
    text = Path("mine.yaml").read_text().replace("graded: false", "grades: {a bit: 1, 'yes': 2}")
    Path("mine.yaml").write_text(text.replace("qrels: {doc_id: by}", "qrels: {doc_id: by, relevance: useful}"))
    assert main(["plan", "mine.yaml"]) == 0
    assert "judgements are graded" in said()[0]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["train-0-of-1", "test-0-of-1"], {"train": "data/train-0-of-1.parquet", "test": "data/test-0-of-1.parquet"}),
        (
            ["train-0-of-2", "train-1-of-2", "dev-0-of-1"],
            {"train": "data/train-*-of-*.parquet", "dev": "data/dev-0-of-1.parquet"},
        ),
        (["train-0-of-1"], {"train": "data/*.parquet"}),
    ],
)
def test_splits_of_training_data_may_lie_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, names: list[str], groups: dict[str, str]
) -> None:
    """As the hub's data sets have them, perhaps in parts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for position, name in enumerate(names):
        row = {"anchor": [f"what of {position}?"], "positive": [f"text {position}"], "negative": ["no"]}
        pq.write_table(pa.table(row), tmp_path / "mine" / "data" / f"{name}.parquet")
    assert main(["init", "mine"]) == 0
    out = said()[0]
    for split in groups:
        assert f"split {split}: {sum(name.startswith(split) for name in names)} queries" in out
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["groups"] == groups


def test_files_of_training_data_that_tell_no_splits_are_asked_about(tmp_path: Path, said: Said) -> None:
    for name in ("nq", "hotpot"):
        (tmp_path / f"{name}.jsonl").write_text('{"query": "a", "pos": ["b"], "neg": ["c"]}\n')
    assert main(["init", str(tmp_path)]) == 2
    assert "There are several files of training data: hotpot.jsonl, nq.jsonl. Name them by" in said()[1]


def test_two_files_of_a_split_are_not_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """Beside one of another split: with a pattern of all of them it would be read as this one."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "train-more", "test"):
        jsonl(tmp_path / "mine" / "data" / f"{name}.jsonl", {"query": f"{name}?", "pos": ["yes"], "neg": ["no"]})
    assert main(["init", "mine"]) == 2
    assert said()[1] == (
        "error: mine/data/*.jsonl: data/train-more.jsonl, data/train.jsonl all belong to the split train. Use a file "
        "per split, or parts whose names differ only in numbers.\n"
    )


def test_a_file_alone_is_of_the_split_that_its_name_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Judgements, in a folder or not, and pairs: nothing is trained on a test set."""
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "file"):
        jsonl(tmp_path / name / "corpus.jsonl", *({"_id": d, "text": text} for d, text in DOCUMENTS))
        jsonl(tmp_path / name / "queries.jsonl", *({"_id": q, "text": text} for q, text, _ in QUERIES))
        file = "qrels/test.jsonl" if name == "folder" else "test.jsonl"
        jsonl(tmp_path / name / file, *({"query-id": q, "corpus-id": f"d{q[1:]}", "score": 1} for q, _, _ in QUERIES))
    write(tmp_path / "pairs" / "test.csv", "question,answer", *(f"{i}?,an answer to {i}" for i in range(12)))
    for name in ("folder", "file", "pairs"):
        assert main(["init", name]) == 0
        assert "split test: 12 queries, 12 with a relevant document, 12 judgements" in said()[0]
        assert "split" not in yaml.safe_load(Path(f"{name}.yaml").read_text())["data"]


def test_the_first_object_may_lack_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """Which was never read, nor named among what is not read."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": d, "body": text, "headline": "A title", "by": "me"} for d, text in DOCUMENTS]
    jsonl(tmp_path / "mine" / "docs.jsonl", {"id": "d0", "body": "alone"}, *rows[1:])
    assert main(["init", "mine"]) == 0
    out = said()[0]
    assert "docs.jsonl: not read: by\n" in out
    assert "  d1: A title text number 1 " in out
    columns = yaml.safe_load(Path("mine.yaml").read_text())["data"]["columns"]
    assert columns["documents"] == {"doc_id": "id", "title": "headline", "text": "body"}


def test_other_programs_notes_are_no_parts_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Spark's, and those that macOS leaves, which may be called as a part is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    objects(tmp_path / "mine")
    for name in ("docs", "queries", "qrels"):
        (tmp_path / "mine" / name).mkdir()
        (tmp_path / "mine" / f"{name}.jsonl").rename(tmp_path / "mine" / name / "part-0.jsonl")
        for note in ("_SUCCESS", ".DS_Store", "._part-0.jsonl"):
            (tmp_path / "mine" / name / note).write_bytes(b"\0")
    assert main(["init", "mine"]) == 0
    out = said()[0]
    assert "split train: 8 queries, 8 with a relevant document" in out
    assert "not used" not in out


def test_a_folder_that_is_not_used_is_said_with_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine" / "docs.csv", "id,text", *(f"{d},{text}" for d, text in DOCUMENTS))
    for name in ("mixed/a.csv", "mixed/b.jsonl", "deep/er/a.csv", "scans/a.png", "scans/b.png"):
        write(tmp_path / "mine" / name, "x,y", "1,2")
    write(tmp_path / "mine" / "unlike" / "a.csv", "id,text", "1,2")
    write(tmp_path / "mine" / "unlike" / "b.csv", "id,words", "1,2")
    (tmp_path / "mine" / "empty").mkdir()
    assert main(["init", "mine"]) == 0
    assert [line for line in said()[0].splitlines() if line.startswith("not used")] == [
        "not used: deep/, empty/, mixed/, scans/: a folder that is not one table in parts",
        "not used: unlike/: a folder of tables of different columns",
    ]


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"question": "{}?", "answer": "right {}", "negative_1": "wrong {}", "negative_2": "no"}, {}),
        ({"query": "{}?", "answer": "right {}", "negative": "wrong {}", "score": [0.9, 0.1]}, {}),
        (
            {"nr": "n{}", "answer": "right {}", "anchor": "{}?", "negative": "wrong {}", "team": "blue"},
            {"columns": ["anchor", "answer", "negative"]},
        ),
    ],
    ids=["n-tuples", "with scores", "among other columns"],
)
def test_negatives_of_sentence_transformers_are_known_by_their_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, row: dict[str, Any], keys: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (json.loads(json.dumps(row).replace("{}", str(number))) for number in range(4))
    jsonl(tmp_path / "mine" / "train.jsonl", *rows)
    assert main(["init", "mine"]) == 0
    assert "split train: 4 queries, 4 with a relevant document, 4 judgements" in said()[0]
    data = yaml.safe_load(Path("mine.yaml").read_text())["data"]
    assert data == {"format": "sentence_transformers", "path": "mine", "groups": {"train": "train.jsonl"}, **keys}
    result = declared(data)
    texts = {document.doc_id: document.text for document in result.read_documents()}
    inputs = [[texts[doc_id] for doc_id in group.doc_ids] for group in result.read_groups()]
    assert [item[:2] for item in inputs] == [[f"right {number}", f"wrong {number}"] for number in range(4)]
    assert {len(item) for item in inputs} == {3 if "negative_2" in row else 2}


def test_what_the_reader_of_negatives_cannot_read_is_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Triplets in a .csv, and labels that are topics."""
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "triplets" / "train.csv", "anchor,positive,negative", *(f"{number}?,yes,no" for number in range(4))
    )
    assert main(["init", "triplets"]) == 0
    assert "train.csv: not read: negative\n" in said()[0]
    jsonl(
        tmp_path / "faq" / "faq.jsonl",
        *({"question": f"{number}?", "answer": "A", "labels": ["a"]} for number in range(4)),
    )
    assert main(["init", "faq"]) == 0
    assert "split train: 4 queries, 4 with" in said()[0]
    assert yaml.safe_load(Path("faq.yaml").read_text())["data"]["paired"] is True


@pytest.mark.parametrize("name", ["qrels.tsv", "qrels.txt"])
def test_tables_without_headers_are_not_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str
) -> None:
    """The names of MS MARCO's files say that there are none."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own" / "collection.tsv", *(f"{d}\t{text}" for d, text in DOCUMENTS))
    write(tmp_path / "own" / "queries.tsv", *(f"{q}\t{text}" for q, text, _ in QUERIES))
    write(tmp_path / "own" / name, *(f"{q}\t0\td{q[1:]}\t1" for q, _, _ in QUERIES))
    assert main(["init", "own"]) == 2
    assert "  collection.tsv: columns d0, text number 0 says something: none that is known\n" in said()[1]
    for role in ("queries", "qrels"):
        subject = next((tmp_path / "own").glob(f"{role}.t*"))
        subject.rename(tmp_path / "own" / f"{role}.train.tsv")
    assert main(["init", "own"]) == 0
    assert "split train: 12 queries, 12 with a relevant document, 12 judgements" in said()[0]


@pytest.mark.parametrize("name", ["gold", "judged.txt", "my.qrel", "qrels.trec", "labels.tsv", "told.gz"])
def test_qrels_of_trec_are_known_by_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str
) -> None:
    """And what is not used is listed with why."""
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "own" / "docs.jsonl", *({"doc_id": d, "text": text} for d, text in DOCUMENTS))
    write(tmp_path / "own" / "asked.tsv", "query_id\tquery", *(f"{q}\t{text}" for q, text, _ in QUERIES))
    write(tmp_path / "own" / name, *(f"{q} 0 d{q[1:]} 1" for q, _, _ in QUERIES))
    write(tmp_path / "own" / "bm25.txt", *(f"{q} Q0 d{q[1:]} 1 3.5 bm25" for q, _, _ in QUERIES))
    write(tmp_path / "own" / "README.md", "a b c")
    write(tmp_path / "own" / "images" / "x" / "1.png", "")
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "split train: 12 queries, 12 with a relevant document, 12 judgements" in out
    assert "not used: README.md: no table (.md)\n" in out
    assert "not used: bm25.txt: a ranking of TREC's; `evaluate.other_rankings` of a config takes it\n" in out
    assert "not used: images/: a folder that is not one table in parts\n" in out
    assert "not read" not in out
    write(tmp_path / "own" / name, "no qrels")
    source = declared(yaml.safe_load(Path("own.yaml").read_text())["data"])
    if name in ("gold", "my.qrel", "qrels.trec", "told.gz"):
        with pytest.raises(UserError, match=rf"own/{name}: this is not a table. Use one of \.csv, .* or TREC's qrels"):
            list(source.read_qrels())


def test_files_that_a_layout_does_not_use_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, beir: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(beir, tmp_path / "own")
    for number in range(7):
        write(tmp_path / "own" / f"{number}.png", "")
    assert main(["init", "own"]) == 0
    assert re.findall("not used.*", said()[0]) == ["not used: 0.png, 1.png, 2.png, 3.png, 4.png and 2 more"]


@pytest.mark.parametrize(
    ("docs", "asked"),
    [("id,title,text", "question,topic"), ("nr,body,name", "query,shown"), ("id,text,when", "ask,ts")],
)
def test_texts_titles_and_times_that_match_are_no_judgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, docs: str, asked: str
) -> None:
    monkeypatch.chdir(tmp_path)
    same = {"title": "Topic{}", "body": "what is number {}?", "when": "2024-05-{:02}T10:00:00Z"}
    form = next(form for name, form in same.items() if name in docs.split(","))
    cell = [form if name in same else "a{}" if name in ("id", "nr") else "some text {}" for name in docs.split(",")]
    write(
        tmp_path / "own" / "docs.csv",
        docs,
        *(",".join(cell).replace("{}", "{0}").replace("{:", "{0:").format(number) for number in range(10, 30)),
    )
    write(tmp_path / "own" / "asked.csv", asked, *(f"how {number}?," + form.format(number) for number in range(10, 30)))
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "20 documents" in out
    assert "20 queries" in out
    assert "0 with a relevant document, 0 judgements" in out


@pytest.mark.parametrize("when", ["2024-05-{:02} 10:00:00", "2024-05-{:02}T10:00Z", "{:02}.05.2024", "17000000{:02}"])
def test_a_click_logs_time_is_no_query_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, when: str
) -> None:
    """The columns of ids are named, and what comes next works."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own" / "docs.csv", "id,body", *(f"KB-{number},body {number} is long" for number in range(10, 30)))
    rows = [f"{when.format(number)},{'' if number == 12 else f'how {number}?'},KB-{number}" for number in range(10, 30)]
    write(tmp_path / "own" / "clicks.csv", "ts,query,clicked_id", *rows)
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "docs.csv: id has the doc_id of documents\n" in out
    assert "clicks.csv: clicked_id has the doc_id of qrels\n" in out
    assert "clicks.csv: not read: ts\n" in out
    assert "queries are numbered by row" in out
    *_, command, _ = out.splitlines()
    assert command.endswith("plan own.yaml --set data.on_bad=drop")
    assert main(command.split()[3:]) == 0


@pytest.mark.parametrize("kind", ["tables", "beir"])
def test_ids_in_another_unicode_form_are_read_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    actual, text, docs = ("_id", "text", "corpus") if kind == "beir" else ("doc_id", "text", "docs")
    jsonl(
        tmp_path / "own" / f"{docs}.jsonl",
        *({actual: f"cafe\u0301-{number}", text: f"body {number}"} for number in range(12)),
    )
    requests = {"query_id": "q1", "question": "what?"} if kind == "tables" else {"_id": "q1", "text": "what?"}
    jsonl(tmp_path / "own" / "queries.jsonl", requests)
    judged = tmp_path / "own" / ("qrels/test.tsv" if kind == "beir" else "qrels.tsv")
    write(
        judged, "query-id\tcorpus-id\tscore" if kind == "beir" else "query_id\tdoc_id\trelevance", "q1\tcaf\u00e9-3\t1"
    )
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "Some judgements write ids in another Unicode form than the tables. The config reads all ids in NFC." in out
    assert "1 with a relevant document, 1 judgements" in out
    assert yaml.safe_load(Path("own.yaml").read_text())["data"]["ids"] == "NFC"
