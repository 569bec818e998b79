"""Tables in .csv, .tsv, .jsonl and .txt files, and lists of questions with their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from sparring.components.sources.reading import read_csv
from sparring.components.sources.records import Bad, Judgement
from tests.support.errors import refused
from tests.support.sources import source, without_place, write

NAMED: dict[str, Any] = {"documents": {"text": "answer"}, "queries": {"text": "question"}}


def pairs(folder: Path, file: str, **keys: Any) -> Any:
    """A source whose one file has questions with answers."""
    both = {"documents": file, "queries": file, "columns": NAMED, "split": "train"}
    return source(format="tables", path=str(folder), paired=True, **{**both, **keys})


def test_three_tables_with_columns_of_other_names(tmp_path: Path) -> None:
    write(tmp_path / "docs.csv", "id,headline,body", 'a,A,"x, ""y""', 'z"', "b,,y")
    write(tmp_path / "asked.tsv", "qid\tquestion\tsplit", 'p\t"p?\ttrain', "q\tq?\ttest")
    write(
        tmp_path / "judged.jsonl.gz",
        '{"query_id": "p", "doc_id": "a", "relevance": 2, "split": "train"}',
        '{"query_id": "q", "doc_id": "b", "relevance": 1, "split": "test"}',
    )
    columns = {
        "documents": {"doc_id": "id", "title": "headline", "text": "body"},
        "queries": {"query_id": "qid", "text": "question"},
    }
    files = {"documents": "docs.csv", "queries": "asked.tsv", "qrels": "judged.jsonl.gz"}
    result = source(format="tables", path=str(tmp_path), columns=columns, **files)
    assert list(result.files()) == list(files.values())
    assert list(result.read_documents()) == [
        ("a", "A", 'x, "y"\nz', f"{tmp_path}/docs.csv:2"),
        ("b", "", "y", f"{tmp_path}/docs.csv:4"),
    ]
    assert without_place(result.read_queries()) == [("p", '"p?', [], "train"), ("q", "q?", [], "test")]
    assert without_place(result.read_qrels()) == [("p", "a", 2, "train"), ("q", "b", 1, "test")]


def test_qrels_without_relevances_are_declared_so(tmp_path: Path) -> None:
    """Else a column that is called otherwise would be overlooked."""
    write(tmp_path / "documents.csv", "doc_id,text", "a,x", "b,y")
    write(tmp_path / "asked.csv", "query_id,text", "1,one?")
    write(tmp_path / "qrels.csv", "query_id,doc_id,grade", "1,a,0", "1,b,2")
    keys = {"path": str(tmp_path), "queries": "asked.csv", "qrels": "qrels.csv", "split": "train"}
    judged = source(format="tables", **keys, graded=False)
    assert without_place(judged.read_qrels()) == [("1", "a", 1, "train"), ("1", "b", 1, "train")]
    with refused("qrels.csv", "wrong-columns", "'relevance'"):
        list(source(format="tables", **keys).read_qrels())


def test_a_name_of_no_column_of_ours_is_refused_in_every_kind_of_file(tmp_path: Path) -> None:
    """In JSON lines it was passed over."""
    write(tmp_path / "faq.csv", "question,answer", "a?,A")
    write(tmp_path / "faq.jsonl", '{"question": "a?", "answer": "A"}')
    for file in ("faq.csv", "faq.jsonl"):
        with refused("columns", "unknown-column", file, "'txt'"):
            list(pairs(tmp_path, file, columns={**NAMED, "queries": {"text": "question", "txt": "q"}}).read_queries())


def test_a_name_that_one_of_several_files_lacks_is_refused(tmp_path: Path) -> None:
    """In JSON lines its documents had no titles, and nobody was told."""
    write(tmp_path / "a.csv", "heading,text", "A,x")
    write(tmp_path / "b.jsonl", '{"title": "B", "text": "y"}')
    keys = {"path": str(tmp_path), "documents": ["a.csv", "b.jsonl"], "columns": {"documents": {"title": "heading"}}}
    with refused("b.jsonl", "wrong-columns", "'heading'"):
        list(source(format="tables", **keys).read_documents())
    write(tmp_path / "b.jsonl", '{"text": "y"}', '{"heading": "B", "text": "z"}')
    assert [row[1] for row in without_place(source(format="tables", **keys).read_documents())] == ["A", "", "B"]


def test_the_first_object_may_lack_what_is_needed(tmp_path: Path) -> None:
    """It is a bad record then, as any other would be; what none of the first has is a wrong name."""
    write(tmp_path / "a.jsonl", '{"doc_id": "c"}', '{"text": "y", "doc_id": "d"}')
    first, second = source(format="tables", path=str(tmp_path), documents="a.jsonl").read_documents()
    assert (first[0], second[0]) == ("document with neither title nor text", "d")
    keys = {"path": str(tmp_path), "documents": "a.jsonl", "columns": {"documents": {"text": "body"}}}
    with refused("a.jsonl", "wrong-columns", "'body'"):
        list(source(format="tables", **keys).read_documents())


def test_pairs_with_relevances(tmp_path: Path) -> None:
    """A pair of relevance 0 was trained on as right. A row without a value is bad, where the others have one."""
    for head, columns in (
        ("relevance", NAMED),
        ("Label", {**NAMED, "queries": {"text": "question", "relevance": "Label"}}),
    ):
        write(tmp_path / "faq.csv", f"question,answer,{head}", "a?,A,0", "a?,B,2", "b?,A,", "c?,C,yes")
        result = list(pairs(tmp_path, "faq.csv", columns=columns).read_qrels())
        assert without_place(item for item in result if not isinstance(item, Bad)) == [
            ("1", "1", 0, "train"),
            ("1", "2", 2, "train"),
        ]
        assert [item.reason for item in result if isinstance(item, Bad)] == ["relevance that is not an integer"] * 2


def test_pairs_of_one_file(tmp_path: Path) -> None:
    """A text that stands in several rows is one document or query; a row without a question a document alone."""
    write(tmp_path / "faq.csv", "question,answer", "a?,A", "b?,A", "a?,B", ",C", "d?,C")
    result = pairs(tmp_path, "faq.csv")
    assert without_place(result.read_documents()) == [("1", "", "A"), ("3", "", "B"), ("4", "", "C")]
    assert without_place(result.read_queries()) == [
        ("1", "a?", [], "train"),
        ("2", "b?", [], "train"),
        ("5", "d?", [], "train"),
    ]
    assert without_place(result.read_qrels()) == [
        ("1", "1", 1, "train"),
        ("2", "1", 1, "train"),
        ("1", "3", 1, "train"),
        ("5", "4", 1, "train"),
    ]
    assert list(result.files()) == ["faq.csv"]


def test_pairs_with_ids_and_splits(tmp_path: Path) -> None:
    write(
        tmp_path / "faq.jsonl",
        '{"doc_id": 7, "question": "a?", "answer": "A", "answers": "one", "split": "train"}',
        '{"doc_id": 7, "question": "b?", "answer": "A", "split": "test"}',
        '{"doc_id": 8, "question": "c?", "answer": "A", "split": "train"}',
    )
    result = pairs(tmp_path, "faq.jsonl", split=None, splits={"dev": "test", "train": "train"})
    assert without_place(result.read_documents()) == [("7", "", "A"), ("8", "", "A")]
    assert without_place(result.read_queries()) == [
        ("1", "a?", ["one"], "train"),
        ("2", "b?", [], "dev"),
        ("3", "c?", [], "train"),
    ]
    assert [item[:3] for item in without_place(result.read_qrels())] == [
        ("1", "7", 1),
        ("2", "7", 1),
        ("3", "8", 1),
    ]
    only = pairs(tmp_path, "faq.jsonl", split=None, splits=["test"])
    assert without_place(only.read_qrels()) == [("2", "7", 1, "test")]
    for cell, answers in {
        "['one', 'two']": ["one", "two"],
        '["one", null]': ["one"],
        r'["\ud83d\ude00 yes", "a\/b"]': ["\U0001f600 yes", "a/b"],
        "['one' 'two']": ["one", "two"],
        "[sic]": ["[sic]"],
        "[{[1]: 2}]": ["[{[1]: 2}]"],
        "[1, 2]": ["[1, 2]"],
        '{"text": ["Ann"], "answer_start": [6]}': ["Ann"],
        "{'text': [], 'answer_start': []}": [],
        "{x}": ["{x}"],
        "{'text': array(['Ann', 'A'], dtype=object), 'answer_start': array([6, 6])}": ["Ann", "A"],
    }.items():
        quoted = cell.replace('"', '""')
        write(tmp_path / "listed.csv", "question,answer,answers,split", f'a?,A,"{quoted}",train')
        ((_, _, read, _),) = without_place(pairs(tmp_path, "listed.csv", split=None).read_queries())
        assert read == answers
    write(tmp_path / "none.csv", "question,answer", "a?,A")
    with refused("none.csv:2", "no-split"):
        list(pairs(tmp_path, "none.csv", split=None).read_queries())


SQUAD = [
    ({"text": ["Ann"], "answer_start": [6]}, ["Ann"]),
    ({"text": ["Bergen", "in Bergen"], "answer_start": [10, 7]}, ["Bergen", "in Bergen"]),
    ({"text": [], "answer_start": []}, []),
    (None, []),
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hugging face"])
def test_answers_in_squads_form_are_read(tmp_path: Path, kind: str) -> None:
    rows = [{"question": f"q{i}?", "context": f"C{i}", "answers": item} for i, (item, _) in enumerate(SQUAD)]
    struct = pa.struct({"text": pa.list_(pa.string()), "answer_start": pa.list_(pa.int32())})
    if kind == "hugging face":  # a sequence of features
        rows = [
            {
                **row,
                "answers": row["answers"]
                and [
                    {"text": text, "answer_start": position}
                    for text, position in zip(*row["answers"].values(), strict=True)
                ],
            }
            for row in rows
        ]
        struct = pa.list_(pa.struct({"text": pa.string(), "answer_start": pa.int32()}))
    name = "rows.jsonl" if kind == "jsonl" else "rows.parquet"
    if kind == "jsonl":
        write(tmp_path / name, *map(json.dumps, rows))
    else:
        schema = pa.schema({"question": pa.string(), "context": pa.string(), "answers": struct})
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / name)
    columns = {"documents": {"text": "context"}, "queries": {"text": "question"}}
    read = pairs(tmp_path, name, columns=columns).read_queries()
    assert [item[2] for item in without_place(read)] == [answers for _, answers in SQUAD]


def test_a_column_that_cannot_be_read_can_be_left_out(tmp_path: Path) -> None:
    """Its rows are bad, and null leaves the column out."""
    write(
        tmp_path / "faq.jsonl",
        *(
            json.dumps({"doc_id": position, "title": ["T"], "text": "A", "question": "a?", "answers": 7, "split": [1]})
            for position in ("a", "b")
        ),
    )
    read = pairs(tmp_path, "faq.jsonl", columns={"queries": {"text": "question"}})
    bad = [next(iter(read.read_documents())), next(iter(read.read_queries()))]
    assert [item.detail for item in bad if isinstance(item, Bad)] == [
        "title must be text, but is ['T']",
        "got 7",
    ]
    columns = {"documents": {"title": None, "doc_id": None}, "queries": {"text": "question", "answers": None}}
    read = pairs(tmp_path, "faq.jsonl", columns=columns)
    (split,) = {query.detail for query in read.read_queries() if isinstance(query, Bad)}
    assert split == "got [1]"
    columns["queries"]["split"] = None
    read = pairs(tmp_path, "faq.jsonl", columns=columns)
    assert without_place(read.read_documents()) == [("1", "", "A")]
    assert without_place(read.read_queries()) == [("1", "a?", [], "train")]
    with refused("columns", "needed-column"):
        list(pairs(tmp_path, "faq.jsonl", columns={"documents": {"text": None}}).read_documents())


@pytest.mark.parametrize("fewer", ["documents", "queries"])
def test_pairs_of_two_text_files(tmp_path: Path, fewer: str) -> None:
    """A line each; an empty question is none."""
    write(tmp_path / "texts.txt", "A", "B", "C")
    write(tmp_path / "questions.txt", "a?", "", "c?")
    keys: dict[str, Any] = {"documents": "texts.txt", "queries": "questions.txt", "columns": {}}
    result = pairs(tmp_path, "", **keys)
    assert without_place(result.read_documents()) == [("1", "", "A"), ("2", "", "B"), ("3", "", "C")]
    assert without_place(result.read_queries()) == [("1", "a?", [], "train"), ("3", "c?", [], "train")]
    assert without_place(result.read_qrels()) == [("1", "1", 1, "train"), ("3", "3", 1, "train")]
    write(tmp_path / {"documents": "texts.txt", "queries": "questions.txt"}[fewer], "x")
    with refused(".txt:2", "fewer-rows", fewer):
        list(result.read_qrels())


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("position", [0, 1])
def test_a_row_without_its_id_is_not_numbered(tmp_path: Path, declared: bool, position: int) -> None:
    """Whether the config names the column, or any row has it; its judgement goes with the query."""
    name = "ticket" if declared else "query_id"
    requests: list[dict[str, Any]] = [{name: f"t{i}", "text": f"{i}?", "article": "a"} for i in range(3)]
    requests[position]["tickt"] = requests[position].pop(name)
    write(tmp_path / "asked.jsonl", *map(json.dumps, requests))
    write(tmp_path / "documents.csv", "doc_id,text", "a,x")
    ids = {"query_id": name} if declared else {}
    result = source(
        format="tables",
        path=str(tmp_path),
        queries="asked.jsonl",
        qrels="asked.jsonl",
        split="train",
        graded=False,
        columns={"queries": ids, "qrels": {**ids, "doc_id": "article"}},
    )
    records = list(result.read_queries())
    assert str(records.pop(position)) == f"{tmp_path}/asked.jsonl:{position + 1}: no query id"
    named = [f"t{i}" for i in range(3) if i != position]
    assert [record[0] for record in records] == named
    assert [qrel[0] for qrel in result.read_qrels()] == named


def test_a_row_of_pairs_or_judgements_without_its_id_is_told(tmp_path: Path) -> None:
    write(
        tmp_path / "faq.jsonl", '{"doc_id": "a", "question": "a?", "answer": "A"}', '{"question": "b?", "answer": "B"}'
    )
    result = pairs(tmp_path, "faq.jsonl")
    reason = f"{tmp_path}/faq.jsonl:2: no document id"
    assert [str(document) for document in result.read_documents() if isinstance(document, Bad)] == [reason]
    assert without_place(result.read_qrels()) == [("1", "a", 1, "train")]
    pq.write_table(pa.table({"query_id": ["p", None], "text": ["p?", "q?"]}), tmp_path / "asked.parquet")
    write(tmp_path / "judged.jsonl", '{"query_id": "p", "page": "a"}', '{"query_id": "p"}')
    result = source(
        format="tables",
        path=str(tmp_path),
        documents="faq.jsonl",
        queries="asked.parquet",
        graded=False,
        qrels="judged.jsonl",
        split="train",
        columns={"qrels": {"doc_id": "page"}},
    )
    assert str(list(result.read_queries())[1]) == f"{tmp_path}/asked.parquet: row 2: no query id"
    assert str(list(result.read_qrels())[1]) == f"{tmp_path}/judged.jsonl:2: no document id"


@pytest.mark.parametrize("content", ["", "query_id,doc_id,text\n"], ids=["empty", "a header"])
def test_a_declared_table_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    """It would be as if nobody had asked, or judged, and the run would train on documents alone."""
    write(tmp_path / "documents.csv", "doc_id,text", "a,x")
    write(tmp_path / "asked.csv", "query_id,text", "1,one?")
    (tmp_path / "none.csv").write_text(content)
    keys: dict[str, Any] = {"format": "tables", "path": str(tmp_path), "split": "train", "graded": False}
    with refused("none.csv", "no-rows", "queries"):
        list(source(**keys, queries="none.csv").read_queries())
    with refused("none.csv", "no-rows", "qrels"):
        list(source(**keys, queries="asked.csv", qrels="none.csv").read_qrels())
    write(tmp_path / "some.csv", "query_id,doc_id,split", "1,a,test")
    whole = source(**{**keys, "split": None, "splits": ["train"]}, queries="asked.csv", qrels="[ns]o*e.csv")
    assert list(whole.read_qrels()) == []


def test_documents_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x", "y"]}), tmp_path / "part-1.parquet")
    pq.write_table(pa.table({"text": ["z"]}), tmp_path / "part-2.parquet")
    result = source(format="tables", path=str(tmp_path), documents="part-*.parquet")
    assert without_place(result.read_documents()) == [("1", "", "x"), ("2", "", "y"), ("3", "", "z")]
    assert list(result.read_queries()) == list(result.read_qrels()) == []
    assert len(result.files()) == 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    for keys, says in [
        ({"paired": True}, "paired: this key needs `queries`, and no"),
        ({"paired": True, "queries": "a.csv", "qrels": "b.csv"}, "paired: this key needs `queries`, and no"),
        ({"qrels": "b.csv"}, "qrels: judgements need queries"),
    ]:
        with pytest.raises(ValidationError, match=says):
            source(format="tables", path=str(tmp_path), **keys)
    write(tmp_path / "a.csv", "doc_id,text", "a,x", "b")
    write(tmp_path / "b.csv", "doc_id,body", "a,x")
    write(tmp_path / "c.csv", "doc_id,text", 'a,"x')
    (tmp_path / "d.tsv").write_bytes(b"doc_id\ttext\na\t\xff\n")
    write(tmp_path / "e.jsonl", '{"doc_id": "a"}')
    write(tmp_path / "f.jsonl", '{"text": "a"}', "[")
    for place, code in [
        ("a.csv:3", "wrong-columns"),
        ("a.xlsx", "not-a-table"),
        ("b.csv", "wrong-columns"),
        ("c.csv:2", "other-format"),
        ("d.tsv:2", "text-that-is-not-utf-8"),
        ("e.jsonl", "wrong-columns"),
        ("f.jsonl:2", "line-that-is-not-json"),
    ]:
        file = place.partition(":")[0]
        with refused(place, code):
            list(source(format="tables", path=str(tmp_path), documents=file).read_documents())
    (tmp_path / "g.csv").write_bytes(b"doc_id,text\na,\xff\n")
    (bad,) = source(format="tables", path=str(tmp_path), documents="g.csv").read_documents()
    assert isinstance(bad, Bad)
    assert bad.reason == "text that is not UTF-8"
    write(tmp_path / "empty.csv")
    assert list(source(format="tables", path=str(tmp_path), documents="empty.csv").read_documents()) == []


def test_csv_with_semicolons_a_mark_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes('\ufeffid;text\r\n\r\n1;"a, b\r\nc"\r\n2;d\r\n'.encode())
    assert [cells for cells, _ in read_csv(file)] == [["id", "text"], ["1", "a, b\r\nc"], ["2", "d"]]
    assert [place.rpartition(":")[2] for _, place in read_csv(file)] == ["1", "3", "5"]


def test_each_file_of_queries_may_be_a_split(tmp_path: Path) -> None:
    write(tmp_path / "documents.csv", "doc_id,text", "a,x", "b,y")
    write(tmp_path / "asked.csv", "query_id,text", "p,one?")
    write(tmp_path / "test.csv", "query_id,text,split", "q,two?,", "r,three?,dev")
    write(tmp_path / "qrels.csv", "query_id,doc_id", "p,a", "q,b", "r,b")
    keys = {"path": str(tmp_path), "qrels": "qrels.csv", "graded": False}
    result = source(format="tables", **keys, queries={"train": "asked.csv", "test": "test.csv"})
    assert list(result.files()) == ["documents.csv", "asked.csv", "test.csv", "qrels.csv"]
    assert without_place(result.read_queries()) == [
        ("p", "one?", [], "train"),
        ("q", "two?", [], "test"),
        ("r", "three?", [], "dev"),
    ]
    assert [qrel.split for qrel in result.read_qrels() if isinstance(qrel, Judgement)] == ["train", "test", "dev"]


@pytest.mark.parametrize("content", ["", "question,answer\n"], ids=["empty", "a header"])
def test_a_split_whose_file_has_no_rows_is_refused(tmp_path: Path, content: str) -> None:
    """Another one would be drawn of the training queries."""
    write(tmp_path / "faq.csv", "question,answer", "a?,A", "b?,B")
    (tmp_path / "test.csv").write_text(content)
    files = {"documents": ["faq.csv", "test.csv"], "queries": {"train": "faq.csv", "test": "test.csv"}}
    with refused("test.csv", "no-rows"):
        list(pairs(tmp_path, "", **files, split=None).read_queries())


def test_pairs_in_several_files_beside_documents_alone(tmp_path: Path) -> None:
    """Rows belong together file by file, in whatever order the files are named."""
    write(tmp_path / "faq.csv", "question,answer", "a?,A", "b?,B")
    write(tmp_path / "test.csv", "question,answer", "c?,B", "d?,D")
    write(tmp_path / "more.csv", "answer", "E", "A")
    files = {"documents": ["more.csv", "faq.csv", "test.csv"], "queries": {"test": "test.csv", "train": "faq.csv"}}
    result = pairs(tmp_path, "", **files, split=None)
    assert without_place(result.read_documents()) == [("1", "", "E"), ("2", "", "A"), ("4", "", "B"), ("6", "", "D")]
    assert without_place(result.read_queries()) == [
        ("1", "a?", [], "train"),
        ("2", "b?", [], "train"),
        ("3", "c?", [], "test"),
        ("4", "d?", [], "test"),
    ]
    assert without_place(result.read_qrels()) == [
        ("1", "2", 1, "train"),
        ("2", "4", 1, "train"),
        ("3", "4", 1, "test"),
        ("4", "6", 1, "test"),
    ]


def test_a_question_without_an_id_that_stands_in_several_rows_is_one_query(tmp_path: Path) -> None:
    """A row each for what answers it; in another split it is another query."""
    write(tmp_path / "documents.csv", "doc_id,text", "a,x", "b,y", "c,z")
    write(tmp_path / "asked.csv", "text,by", "one?,a", "two?,b", "one?,c", "three?,")
    write(tmp_path / "later.csv", "text,by", "one?,b")
    files = {"train": "asked.csv", "test": "later.csv"}
    result = source(
        format="tables",
        path=str(tmp_path),
        graded=False,
        columns={"qrels": {"doc_id": "by"}},
        queries=files,
        qrels=files,
    )
    assert without_place(result.read_queries()) == [
        ("1", "one?", [], "train"),
        ("2", "two?", [], "train"),
        ("4", "three?", [], "train"),
        ("5", "one?", [], "test"),
    ]
    assert without_place(result.read_qrels()) == [
        ("1", "a", 1, "train"),
        ("2", "b", 1, "train"),
        ("1", "c", 1, "train"),
        ("5", "b", 1, "test"),
    ]


def test_relevances_in_words_count_what_is_declared(tmp_path: Path) -> None:
    write(tmp_path / "documents.csv", "doc_id,text", "a,x", "b,y")
    write(tmp_path / "asked.csv", "query_id,text", "1,one?")
    write(tmp_path / "qrels.csv", "query_id,doc_id,relevance", "1,a, very ", "1,b,2", "1,b,hardly", "1,b,1.5")
    keys = {"format": "tables", "path": str(tmp_path), "queries": "asked.csv", "qrels": "qrels.csv", "split": "train"}
    *good, word, number = source(**keys, grades={"very": 3, "yes": 1}).read_qrels()
    assert [item.relevance for item in good] == [3, 2]
    assert str(word).endswith("(got 'hardly', of query '1')")
    assert str(number).endswith("(got '1.5', of query '1')")
    write(tmp_path / "faq.csv", "question,answer,relevance", "a?,A,yes", "b?,B,0")
    graded = source(
        **{**keys, "documents": "faq.csv", "queries": "faq.csv", "qrels": None},
        paired=True,
        columns=NAMED,
        grades={"yes": 1},
    )
    assert [item[2] for item in without_place(graded.read_qrels())] == [1, 0]
