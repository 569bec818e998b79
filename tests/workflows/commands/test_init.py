"""`init` recognises a collection, says what it holds, and writes a config that can be planned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.sources.base import declared
from sparring.workflows.command_line import main
from tests.support import sources
from tests.support.recognised import (
    DOCUMENTS,
    NOTE,
    QUERIES,
    answered,
    answered_without_ids,
    beir,
    cases_of,
    csv,
    dpr,
    jsonl,
    linked,
    msmarco,
    numbers,
    objects,
    pairs,
    parquet,
    plain_names,
    tickets,
    tsv,
)
from tests.support.sources import write
from tests.support.tiny import Said


def test_another_engines_results_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """Of two tables of queries the one that names documents is meant; what the other may be for is said."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own" / "articles.csv", "article no,body", *(f"KB{d},{text}" for d, text in DOCUMENTS))
    opened = (f"{text},KBd{n // 2},me" for n, (_, text, _) in enumerate(QUERIES))
    write(tmp_path / "own" / "searches.csv", "search,opened,team", *opened)
    result = ({"query": text, "results": [{"article": "KBd0", "score": 0.5}]} for _, text, _ in QUERIES)
    jsonl(tmp_path / "own" / "results.jsonl", *result)
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "not used: results.jsonl: columns query, results\n" in out
    assert "split train: 12 queries, 12 with a relevant document, 12 judgements" in out


def test_labels_of_pairs_are_relevances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own" / "faq.csv", "Question,Answer,Label", *(f"{i}?,an answer to {i},{i % 2}" for i in range(20)))
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "split train: 20 queries, 10 with a relevant document, 20 judgements" in out
    assert "faq.csv: Label is read as how relevant a document is, 0 for not at all\n" in out
    columns = yaml.safe_load(Path("own.yaml").read_text())["data"]["columns"]
    assert columns["queries"] == {"text": "Question", "relevance": "Label"}


@pytest.mark.parametrize(("right", "wrong"), [("True", "False"), ("true", "FALSE"), ("1.0", "0.0"), (True, False)])
def test_labels_of_pairs_may_be_truths_and_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, right: Any, wrong: Any
) -> None:
    """They counted as none, and every pair as a right one."""
    monkeypatch.chdir(tmp_path)
    rows = [{"query": f"{i}?", "passage": f"an answer to {i}", "label": right if i % 2 else wrong} for i in range(20)]
    jsonl(tmp_path / "own" / "pairs.jsonl", *rows)
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "split train: 20 queries, 10 with a relevant document, 20 judgements" in out


def pairs_in_parquet(folder: Path) -> None:
    texts = {"query": [text for _, text, _ in QUERIES], "passage": [text for _, text in DOCUMENTS]}
    pq.write_table(pa.table({**texts, "split": [split for _, _, split in QUERIES]}), folder / "data.parquet")


def lines(folder: Path) -> None:
    write(folder / "questions.txt", *(text for _, text, _ in QUERIES))
    write(folder / "texts.txt", *(text for _, text in DOCUMENTS))


def tevatron(folder: Path) -> None:
    """Rows with ids of a corpus."""
    jsonl(folder / "corpus.jsonl", *({"docid": d, "title": "", "text": text} for d, text in DOCUMENTS))
    for split in ("train", "test"):
        rows = (
            {"query_id": q, "query_text": text, "positive_document_ids": [f"d{q[1:]}"], "negative_document_ids": ["d0"]}
            for q, text, itself in QUERIES
            if itself == split
        )
        jsonl(folder / f"{split}.jsonl", *rows)


def passages(folder: Path) -> None:
    """Tevatron's older rows."""
    listed = [{"docid": d, "title": "", "text": text} for d, text in DOCUMENTS]
    rows = (
        {
            "query_id": q,
            "query": text,
            "positive_passages": [listed[position]],
            "negative_passages": [listed[position - 1]],
        }
        for position, (q, text, _) in enumerate(QUERIES)
    )
    jsonl(folder / "train.jsonl", *rows)


def flagembedding(folder: Path) -> None:
    texts = [text for _, text in DOCUMENTS]
    rows = (
        {"query": text, "pos": [texts[position]], "neg": [texts[position - 1]]}
        for position, (_, text, _) in enumerate(QUERIES)
    )
    jsonl(folder / "groups.jsonl", *rows)


def triplets(folder: Path) -> None:
    texts = [text for _, text in DOCUMENTS]
    rows = (
        {"anchor": text, "positive": texts[position], "negative": texts[position - 1]}
        for position, (_, text, _) in enumerate(QUERIES)
    )
    jsonl(folder / "triplets.jsonl", *rows)


def beside_triplets(folder: Path) -> None:
    """A whole collection is read, whatever training data lies beside it."""
    objects(folder)
    triplets(folder)


FORMATS: list[tuple[Callable[[Path], None], str, dict[str, int]]] = [
    (beir, "beir", {"train": 8, "test": 4}),
    (msmarco, "msmarco", {"train": 8, "dev": 4}),
    (dpr, "dpr", {"train": 8, "dev": 4, "test": 3}),
    (csv, "tables", {"train": 8, "test": 4}),
    (plain_names, "tables", {"train": 12}),
    (numbers, "tables", {"train": 12}),
    (tickets, "tables", {"train": 12}),
    (linked, "tables", {"train": 12}),
    (cases_of, "tables", {"train": 12}),
    (answered, "tables", {"train": 12}),
    (answered_without_ids, "tables", {"train": 11}),  # a question that two rows ask is one
    (tsv, "tables", {"train": 12}),
    (objects, "tables", {"train": 8, "test": 4}),
    (parquet, "tables", {"train": 8, "test": 4}),
    (pairs, "tables", {"train": 12}),
    (pairs_in_parquet, "tables", {"train": 8, "test": 4}),
    (lines, "tables", {"train": 12}),
    (tevatron, "tevatron", {"train": 8, "test": 4}),
    (passages, "tevatron", {"train": 12}),
    (flagembedding, "flagembedding", {"train": 12}),
    (triplets, "sentence_transformers", {"train": 12}),
    (beside_triplets, "tables", {"train": 8, "test": 4}),
]


@pytest.mark.parametrize(("made", "name", "splits"), FORMATS, ids=[item[0].__name__ for item in FORMATS])
def test_what_it_writes_can_be_planned(
    made: Callable[[Path], None],
    name: str,
    splits: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Said,
) -> None:
    """In every format; the plan is of the collection as it is: its numbers are chosen for it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my collection"
    folder.mkdir()
    made(folder)
    assert main(["init", "my collection"]) == 0
    out = said()[0]
    assert "12 documents: " in out
    assert f"{sum(splits.values()):,} queries: " in out
    for split, count in splits.items():
        judged = 0 if name == "dpr" and split == "test" else count
        judgements = 12 if made is answered_without_ids else judged
        assert f"split {split}: {count} queries, {judged} with a relevant document, {judgements} judgements" in out
    assert "wrote my-collection.yaml" in out
    tree = yaml.safe_load(Path("my-collection.yaml").read_text())
    assert tree["recipe"] == "adapt"
    assert tree["data"]["format"] == name
    assert all(" text number " in f" {document.text}" for document in declared(tree["data"]).read_documents())
    assert {line[0] for line in Path("my-collection.yaml").read_text().splitlines()} == {"#", "r", "d", " "}
    assert main(["plan", "my-collection.yaml"]) == 0
    planned = said()[0]
    assert "source missing" not in planned
    assert "all documents" in planned


def test_texts_alone_and_queries_without_judgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Also a single file, and two text files that do not go together line by line."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "notes.v2.txt", *(text for _, text in DOCUMENTS))
    assert main(["init", "notes.v2.txt"]) == 0
    assert "0 queries" in said()[0]
    assert yaml.safe_load(Path("notes.yaml").read_text())["data"] == {"format": "lines", "path": "notes.v2.txt"}
    assert "Nothing can be measured" in Path("notes.yaml").read_text()
    lines(tmp_path / "unequal")
    write(tmp_path / "unequal" / "questions.txt", "what?", "who?")
    assert main(["init", "unequal"]) == 0
    assert "nobody has said which documents are relevant to them" in said()[0]
    for file in ("notes.yaml", "unequal.yaml"):
        assert main(["plan", file]) == 0
        assert "no query of the collection has a relevant document" in said()[0]


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """Tables whose columns nobody knows, and ids that are only numbers of rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    write(tmp_path / "own/documents.csv", "paper,title,abstract", *(f"{name},,{text}" for name, text in DOCUMENTS))
    write(tmp_path / "own/claims.csv", "claim_id,claimed", "1,what is it")
    write(tmp_path / "own/support.csv", "claim_id,paper", "7,another")
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "not used: claims.csv: columns claim_id, claimed\n" in out
    assert "not used: support.csv: " in out
    assert "documents.csv: no column of ids is known, so documents are numbered by row" in out
    assert "0 queries" in out
    assert "next:  if unused files have queries or judgements, name them in own.yaml" in out
    assert "       queries: FILE\n       qrels: FILE\n       columns: {documents: {doc_id: THEIRS}, " in out


def test_where_a_table_without_links_may_have_queries_it_is_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own/articles.csv", "id,body", *(f"{name},{text}" for name, text in DOCUMENTS))
    jsonl(tmp_path / "own/tickets.jsonl", *({"t": q, "u": text, "by": f"KB-{q}"} for q, text, _ in QUERIES))
    assert main(["init", "own"]) == 0
    last = said()[0].rpartition("next:  ")[2]
    assert last.startswith("if unused files have queries or judgements, name them in own.yaml under `data`")
    assert re.search(r"or continue with the documents alone:\n.* plan own\.yaml\n.* run own\.yaml\n$", last)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tickets.csv", b'"a\n', "own/tickets.csv:1: not CSV"),
        ("tickets.jsonl", "{}".encode("utf-16"), "own/tickets.jsonl:"),
        ("tickets.csv", b"", "own/tickets.csv: no columns"),
        ("tickets.jsonl", b"", "own/tickets.jsonl: no columns"),
    ],
)
def test_a_table_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str, content: bytes, says: str
) -> None:
    """Where documents lack queries, which may be in it; not beside a whole collection."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    write(tmp_path / "own/documents.csv", "doc_id,title,text", *(f"{item},,{text}" for item, text in DOCUMENTS))
    (tmp_path / "own" / name).write_bytes(content)
    assert main(["init", "own"]) == 2
    error = said()[1]
    assert error.startswith(f"error: {says}")
    assert error.endswith(". Fix the file, or move it away.\n")
    assert not Path("own.yaml").exists()
    plain_names(tmp_path / "own")
    (tmp_path / "own" / name).rename(tmp_path / "own" / f"aside-{name}")
    assert main(["init", "own"]) == 0


def test_questions_with_several_rows_are_one_query_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """A ticket that two notes solved; a number of a row would be another query, perhaps of another split."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    write(tmp_path / "own/notes.csv", "ref,body", *(f"n-{number},{NOTE} {number}" for number in range(6)))
    rows = [
        (f"c-{number}", f"what is wrong with {number}?", f"n-{number + more}") for number in range(4) for more in (0, 1)
    ]
    names = ("call", "floor", "said", "solved_with")
    calls = (dict(zip(names, (call, "2", text, note), strict=True)) for call, text, note in rows)
    write(tmp_path / "own/calls.jsonl", *map(json.dumps, calls))
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "\n4 queries: " in out
    assert "split train: 4 queries, 4 with a relevant document, 8 judgements" in out
    assert "2 relevant documents a query" in out
    columns = yaml.safe_load(Path("own.yaml").read_text())["data"]["columns"]
    assert columns["queries"] == {"text": "said"}
    assert columns["qrels"] == {"doc_id": "solved_with"}


def test_a_row_without_its_id_does_not_hide_the_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    notes: list[dict[str, Any]] = [{"ref": f"n-{number}", "body": f"{NOTE} {number}"} for number in range(40)]
    calls: list[dict[str, Any]] = [
        {"call": number, "said": f"what is wrong with {number}?", "solved_with": f"n-{number}"} for number in range(30)
    ]
    notes[35]["rf"] = notes[35].pop("ref")
    jsonl(tmp_path / "own/notes.jsonl", *notes)
    jsonl(tmp_path / "own/calls.jsonl", *calls)
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "  no document id: 1, first at own/notes.jsonl:36\n" in out
    columns = yaml.safe_load(Path("own.yaml").read_text())["data"]["columns"]
    assert columns["documents"] == {"doc_id": "ref", "text": "body"}


@pytest.mark.parametrize("name", ["relevance", "Grade"])
def test_relevances_in_the_table_of_queries_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str
) -> None:
    """A 0 says that the document named is wrong; what is called so and has no relevances is another column."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own/notes.csv", "ref,body", *(f"n-{number},{NOTE} {number}" for number in range(40)))
    calls: list[dict[str, Any]] = [
        {"call": f"c{number}", "said": f"what is wrong with {number}?", name: number % 3, "note": f"n-{number}"}
        for number in range(30)
    ]
    jsonl(tmp_path / "own/calls.jsonl", *calls)
    assert main(["init", "own"]) == 0
    assert "judgements by grade: 0: 10, 1: 10, 2: 10" in said()[0]
    data = yaml.safe_load(Path("own.yaml").read_text())["data"]
    assert data["columns"]["qrels"].get("relevance", "relevance") == name
    assert "graded" not in data
    jsonl(tmp_path / "own/calls.jsonl", *({**call, name: "bills"} for call in calls))
    assert main(["init", "own", "--overwrite"]) == 0
    assert "judgements by grade: 1: 30" in said()[0]
    assert yaml.safe_load(Path("own.yaml").read_text())["data"]["graded"] is False


def test_where_no_judgement_can_be_read_nothing_is_to_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    beir(tmp_path / "own")
    for file in (tmp_path / "own" / "qrels").iterdir():
        head, *rows = file.read_text().splitlines()
        write(file, head, *(re.sub(r"\t\S+$", "\t0.5", row) for row in rows))
    assert main(["init", "own"]) == 0
    assert said()[0].endswith("next:  fix the files: none of their judgements can be read\n")


@pytest.mark.parametrize("name", ["relevant", "Is Relevant", "judgement", "gain", "correct"])
def test_relevances_have_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str) -> None:
    """They were left out, and each row, of a 0 too, said that a document is relevant. `score` is the likeliest last."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own/docs.csv", "id,text", *(f"{name},{text}" for name, text in DOCUMENTS))
    write(tmp_path / "own/queries.csv", "id,question", *(f"{q},{text}" for q, text, _ in QUERIES))
    rows = (f"{q},d{q[1:]},{7 + i},{i % 2}" for i, (q, _, _) in enumerate(QUERIES))
    write(tmp_path / "own/qrels.csv", f"query_id,doc_id,score,{name}", *rows)
    assert main(["init", "own"]) == 0
    assert "12 queries, 6 with a relevant document, 12 judgements" in said()[0]


def test_a_column_that_may_say_what_is_not_relevant_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own/docs.csv", "id,text", *(f"{name},{text}" for name, text in DOCUMENTS))
    write(tmp_path / "own/queries.csv", "id,question", *(f"{q},{text}" for q, text, _ in QUERIES))
    rows = (f"{q},d{q[1:]},{'yn'[i % 2]},{i % 3},0" for i, (q, _, _) in enumerate(QUERIES))
    write(tmp_path / "own/qrels.csv", "query_id,doc_id,verdict,stars,iteration", *rows)
    assert main(["init", "own"]) == 0
    assert "qrels.csv: not read: verdict, stars\n  if an unread column holds relevance grades, set " in said()[0]


def test_judgements_of_ids_that_no_column_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """`init` says what to write, and `plan` does not plan as if nobody had judged."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    plain_names(tmp_path / "own")
    write(tmp_path / "own/queries.csv", "question", *(text for _, text, _ in QUERIES))
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "queries.csv: no column of ids is known, so queries are numbered by row; to name one: " in out
    assert "judgement of a missing query: 12, first at own/judgements.csv:2" in out
    assert out.endswith(
        "next:  say in own.yaml which columns have the ids that the judgements name, in the same case:\n"
        "       columns: {documents: {doc_id: THEIRS}, queries: {query_id: THEIRS}, "
        "qrels: {query_id: THEIRS, doc_id: THEIRS}}\n"
    )
    assert main(["plan", "own.yaml"]) == 2
    assert said()[1].startswith(
        "error: own.yaml: own/judgements.csv:2: there is no query 'q0', nor any other query that "
    )


@pytest.mark.parametrize("made", [beir, msmarco, dpr])
def test_columns_are_advised_to_formats_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, made: Callable[[Path], None]
) -> None:
    """The key that was advised stopped the run as an unknown one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    made(tmp_path / "own")
    for file in (*(tmp_path / "own").glob("qrels*/*.tsv"), *(tmp_path / "own").glob("qrels.*.tsv")):
        file.write_text(re.sub(r"\bd(?=\d)", "no-", file.read_text()))
    for file in (tmp_path / "own").glob("*.json"):
        file.write_text(file.read_text().replace('"passage_id": "', '"passage_id": "no-'))
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "judgement of a missing document: " in out
    assert out.endswith(
        "next:  fix the files: no judgement names both a query and a document, in the case of their ids\n"
    )


def test_what_is_wrong_is_counted_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    folder = sources.beir(tmp_path / "mine")
    with (folder / "corpus.jsonl").open("a") as file:
        rows = [{"_id": "d1", "text": "another"}, {"_id": "e", "text": " "}, {"_id": "d4", "text": "One first"}]
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore", "q3\tnowhere\t1", "nobody\td1\t1")
    assert main(["init", "mine"]) == 0
    out = said()[0]
    for line in (
        "  1 has the text of an earlier one",
        "  1 relevant document a query; judgements by grade: 0: 1, 1: 3, 2: 1",
        "4 records cannot be used:",
        "  document with neither title nor text: 1, first at mine/corpus.jsonl:5 'e'",
        "  duplicate document id: 1",
        "  judgement of a missing query: 1, first at mine/qrels/dev.tsv:3 'nobody'",
        "  judgement of a missing document: 1, first at mine/qrels/dev.tsv:2 'nowhere'",
        "  d1: One first",
    ):
        assert line in out.splitlines(), out
    text = Path("mine.yaml").read_text()
    assert "# on_bad: drop  # would leave out: 1 x document with neither" in text
    assert main(["plan", "mine.yaml"]) == 2
    assert (
        "mine/corpus.jsonl:5: document with neither title nor text 'e'. Fix the record, or set data.on_bad" in said()[1]
    )
    assert main(["plan", "mine.yaml", "--set", "data.on_bad=drop"]) == 0


def test_what_a_run_would_refuse_of_queries_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """A query in two splits, by its judgements or by itself, and a pair with two relevances."""
    monkeypatch.chdir(tmp_path)
    beir(tmp_path / "judged")
    with (tmp_path / "judged/qrels/train.tsv").open("a") as file:
        file.write("q0\td0\t1\nq0\td1\t0\nq1\td1\t0\n")  # q0 is of test, and q1 has judged d1 before
    assert main(["init", "judged"]) == 0
    assert ("2 records cannot be used:\n  query in two splits: 1\n  two relevances for one pair: 1\n") in said()[0]
    text = Path("judged.yaml").read_text()
    assert "# on_bad: drop  # would leave out: 1 x query in two splits, 1 x two relevances for one pair\n" in text
    for split in ("train", "test"):
        rows = ({"anchor": f"{i}?", "positive": split, "negative": "no"} for i in range(3 if split == "train" else 2))
        jsonl(tmp_path / "asked" / f"{split}.jsonl", *rows)
    assert main(["init", "asked"]) == 0
    assert "  duplicate query id: 2\n" in said()[0]


def test_the_small_part_of_a_split_is_read_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """As MS MARCO has them: the queries of the part are in the whole too. What nobody has judged is left out."""
    monkeypatch.chdir(tmp_path)
    msmarco(tmp_path / "own")
    for name in ("queries", "qrels"):
        lines = (tmp_path / "own" / f"{name}.dev.tsv").read_text().splitlines()
        write(tmp_path / "own" / f"{name}.dev.small.tsv", *lines[:2])
    for name in ("eval", "eval.small"):
        write(tmp_path / "own" / f"queries.{name}.tsv", "e\tnobody has judged this")
    assert main(["init", "own"]) == 0
    out = said()[0]
    assert "split dev: 2 queries, 2 with a relevant document, 2 judgements" in out
    assert "cannot be used" not in out
    assert yaml.safe_load(Path("own.yaml").read_text())["data"]["splits"] == {"dev": "dev.small", "train": "train"}
    (tmp_path / "own" / "qrels.dev.tsv").unlink()  # as in the download of queries alone
    assert main(["init", "own", "--overwrite"]) == 0
    assert yaml.safe_load(Path("own.yaml").read_text())["data"]["splits"] == {"dev": "dev.small", "train": "train"}


def test_nothing_is_overwritten_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    folder = sources.beir(tmp_path / "mine")
    Path("mine.yaml").write_text("precious")
    assert main(["init", str(folder)]) == 2
    assert said()[1] == "error: mine.yaml: is there already; accepted: another file (-o FILE), or --overwrite\n"
    assert Path("mine.yaml").read_text() == "precious"
    assert main(["init", str(folder), "-o", "other file.yaml"]) == 0
    assert "plan 'other file.yaml'" in said()[0]
    assert main(["init", str(folder), "-o", "nowhere/a.yaml"]) == 2
    assert said()[1] == "error: nowhere/a.yaml: there is no such folder to write to\n"
    assert main(["init", str(folder), "--overwrite"]) == 0
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["path"] == str(folder)


def test_what_makes_no_sense_is_named_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "nowhere"]) == 2
    assert said()[1] == "error: nowhere: there is no such folder or file\n"
    Path("empty").mkdir()
    assert main(["init", "empty"]) == 2
    assert said()[1].splitlines()[:3] == [
        "error: empty: no collection was recognised; what is there:",
        "  nothing",
        "accepted:",
    ]
    write(tmp_path / "odd" / "a.csv", "x,y", "1,2")
    write(tmp_path / "odd" / "b.pdf", "")
    (tmp_path / "odd" / "c.parquet").write_bytes(b"no")
    sources.beir(tmp_path / "odd" / "scifact")
    assert main(["init", "odd"]) == 2
    said_lines = said()[1].splitlines()
    assert said_lines[1:3] == ["  a.csv: columns x, y: none that is known", "  b.pdf: no table (.pdf)"]
    assert said_lines[3].startswith("  c.parquet: not a Parquet file")
    assert said_lines[4] == "  scifact/: a separate collection; to read it, name odd/scifact"
    assert said_lines[5] == "accepted:"
    assert len(said_lines) == 13
    assert main(["init", "odd/c.parquet"]) == 2
    assert re.fullmatch(r"error: odd/c\.parquet: not a Parquet file: .*[^.]\. Fix the file, .*\n", said()[1])
    write(tmp_path / "told" / "told.csv", "statement,abstract", "a,b")
    assert main(["init", "told/told.csv"]) == 0
    assert "told.csv: not read: statement\n" in said()[0]
    write(tmp_path / "told" / "more.csv", "abstract", "c")
    (tmp_path / "told.yaml").unlink()
    assert main(["init", "told"]) == 2
    assert said()[1].startswith("error: There are several tables of documents: more.csv, told.csv. Keep one, name")
    pairs(tmp_path / "odd")
    write(tmp_path / "odd" / "more.csv", "question,text", "a?,b")
    assert main(["init", "odd"]) == 2
    assert said()[1].startswith("error: There are several tables of pairs: faq.csv, more.csv. Keep one, name")
    write(tmp_path / "void" / "docs.csv", "id,text")
    assert main(["init", "void"]) == 2
    assert said()[1] == "error: void: no documents were read\n"
    Path("of-\udcff").mkdir()
    write(tmp_path / "of-\udcff" / "texts.txt", "one")
    assert main(["init", "of-\udcff"]) == 2
    assert said()[1].startswith("error: argument 'of-\\udcff': it is not UTF-8. ")
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("names", ["arg{}-pro", "q{}"])
def test_queries_that_are_documents_are_told_of_until_somebody_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, names: str
) -> None:
    """By the same ids or the same texts; `init` and `plan` say it once, and nothing once the key is there."""
    monkeypatch.chdir(tmp_path)
    texts = [f"argument {number} of many" for number in range(20)]
    documents = [
        {"_id": f"arg{n}-{side}", "title": "", "text": text + ("" if side == "pro" else ", or none")}
        for n, text in enumerate(texts)
        for side in ("pro", "con")
    ]
    jsonl(tmp_path / "own" / "corpus.jsonl", *documents)
    jsonl(
        tmp_path / "own" / "queries.jsonl",
        *({"_id": names.format(n), "text": item} for n, item in enumerate(texts)),
    )
    judged = (f"{names.format(n)}\targ{n}-con\t1" for n in range(20))
    write(tmp_path / "own" / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", *judged)
    assert main(["init", "own"]) == 0
    remark = f"20 of 20 queries are documents of the collection themselves, such as '{names.format(0)}'"
    assert said()[0].count(remark) == 1
    assert main(["plan", "own.yaml"]) == 0
    assert said()[0].count(remark) == 1
    config = (tmp_path / "own.yaml").read_text()
    assert config.count("  # own_document: leave out") == 1
    for decision in ("leave out", "keep"):
        (tmp_path / "own.yaml").write_text(config.replace("# own_document: leave out", f"own_document: {decision}"))
        assert main(["plan", "own.yaml"]) == 0
        assert "are documents" not in said()[0]


def test_a_collection_without_such_queries_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Although its queries and documents are numbered alike."""
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "own" / "corpus.jsonl", *({"_id": str(n), "text": f"document {n}"} for n in range(20)))
    jsonl(tmp_path / "own" / "queries.jsonl", *({"_id": str(n), "text": f"who wants {n}?"} for n in range(20)))
    judged = (f"{n}\t{19 - n}\t1" for n in range(20))
    write(tmp_path / "own" / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", *judged)
    assert main(["init", "own"]) == 0
    assert main(["plan", "own.yaml"]) == 0
    assert "own_document" not in said()[0] + (tmp_path / "own.yaml").read_text()


def test_a_collection_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.put(str(sources.beir(tmp_path / "there")), "/shop/team", recursive=True)
    assert main(["init", "memory://shop/team"]) == 0
    assert yaml.safe_load((tmp_path / "team.yaml").read_text())["data"]["path"] == "memory://shop/team"
    assert said()[0].startswith("memory://shop/team: BEIR's layout\n")
    assert main(["init", "memory://shop/other"]) == 2
    assert said()[1] == "error: memory://shop/other: cannot be read: no files are there\n"
