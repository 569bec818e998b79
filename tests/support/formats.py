"""A small valid collection in every format of `components/sources`, with the declaration that reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.sources import beir, write

Keys = dict[str, Any]
TEXTS = ["alpha beta gamma", "delta epsilon", "zeta eta theta iota", "kappa lambda mu"]
RUN = b"".join(b"q%d Q0 d%d %d %g x\n" % (number % 2, number, number // 2 + 1, 9 - number) for number in range(8))
QRELS = b"q0 0 d0 1\nq0 0 d1 0\nq1 0 d3 2\nq1 0 d5 -1\n"
MARKS = b'{"query":"one","doc_id":"d1","relevant":true,"at":"x"}\n{"query":"two","doc_id":"d2","relevant":null}\n'
"""A ranking and qrels in TREC's format, and what people marked."""
PASSAGES = [{"docid": f"d{number}", "title": f"T{number}", "text": text} for number, text in enumerate(TEXTS)]


def _beir(folder: Path) -> Keys:
    beir(folder)
    return {}


def _lines(folder: Path) -> Keys:
    write(folder / "texts.txt", *TEXTS)
    return {"path": str(folder / "texts.txt")}


def _msmarco(folder: Path) -> Keys:
    write(folder / "collection.tsv", *(f"{number}\t{text}" for number, text in enumerate(TEXTS)))
    for split, start in {"train": 0, "dev": 2}.items():
        write(folder / f"queries.{split}.tsv", *(f"{number}\twhat is {number}?" for number in (10 + start, 11 + start)))
        write(folder / f"qrels.{split}.tsv", *(f"{10 + number} 0 {number} 1" for number in (start, start + 1)))
    digest = hashlib.sha256((folder / "qrels.dev.tsv").read_bytes()).hexdigest()
    return {
        "columns": ["doc_id", "text"],
        "splits": {"train": "train", "dev": "dev"},
        "sha256": {"qrels.dev.tsv": digest},
        "sample": {"train": {"queries": 2, "by": "document"}, "dev": 1},
        "only_judged": True,
        "hold_out": {"held": {"of": "train", "share": 0.5, "start": 0.25}},
    }


def _dpr(folder: Path) -> Keys:
    write(
        folder / "psgs_w100.tsv",
        "id\ttext\ttitle",
        *(f'{number}\t"{text}"\tT{number}' for number, text in enumerate(TEXTS)),
    )
    questions = [
        {
            "question": f"what is {number}?",
            "answers": [TEXTS[number].split()[0]],
            "positive_ctxs": [{"passage_id": str(number)}],
            "hard_negative_ctxs": [{"psg_id": 3 - number, "title": "T", "text": "x"}],
        }
        for number in range(4)
    ]
    write(folder / "train.json", *json.dumps(questions, indent=1).split("\n"))
    write(folder / "test.csv", "what is it?\t['alpha', \"beta\"]", "and that?\t['mu']")
    return {"retriever": {"train": "train.json"}, "questions": {"test": "test.csv"}, "hard_negatives": 1}


def _flagembedding(folder: Path) -> Keys:
    rows = [
        {
            "query": f"what is {number}?",
            "pos": [TEXTS[number]],
            "neg": [TEXTS[number - 1], TEXTS[number - 2]],
            "prompt": "Find",
            "pos_scores": [1.5],
            "neg_scores": [0.5, -1],
        }
        for number in range(3)
    ]
    write(folder / "train.jsonl", *map(json.dumps, rows))
    return {"groups": {"train": "train.jsonl"}, "query_instruction_format": "{}: {}"}


def _sentence_transformers(folder: Path) -> Keys:
    rows = [
        {"anchor": f"what is {number}?", "positive": TEXTS[number], "negative": TEXTS[number - 1], "scores": [2.0, 1]}
        for number in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-0.parquet")
    write(folder / "dev.json", json.dumps([{**row, "anchor": f"and {number}?"} for number, row in enumerate(rows)]))
    return {"groups": {"train": "train-*.parquet", "dev": "dev.json"}}


def _tevatron(folder: Path) -> Keys:
    rows = [
        {
            "query_id": f"q{number}",
            "query_text": f"what is {number}?",
            "positive_document_ids": [f"d{number}"],
            "negative_document_ids": [f"d{number + 1}"],
        }
        for number in range(3)
    ]
    write(folder / "train.jsonl", *map(json.dumps, rows))
    write(folder / "corpus.jsonl", *map(json.dumps, PASSAGES))
    return {"groups": {"train": "train.jsonl"}, "corpus": "corpus.jsonl"}


def _older_tevatron(folder: Path) -> Keys:
    rows = [
        {
            "query_id": f"q{number}",
            "query": f"what is {number}?",
            "positive_passages": [{**PASSAGES[number], "score": 1.0}],
            "negative_passages": [{**PASSAGES[number + 1], "score": 0.5}],
        }
        for number in range(3)
    ]
    write(folder / "train.jsonl", *map(json.dumps, rows))
    return {"groups": {"train": "train.jsonl"}}


TABLES: dict[str, list[Keys]] = {
    "documents": [{"doc_id": f"d{number}", "title": f"T{number}", "text": text} for number, text in enumerate(TEXTS)],
    "queries": [
        {
            "query_id": f"q{number}",
            "text": f"what is {number}?",
            "answers": [TEXTS[number].split()[0]],
            "split": "train" if number % 2 else "test",
        }
        for number in range(4)
    ],
    "qrels": [{"query_id": f"q{number}", "doc_id": f"d{number}", "relevance": number + 1} for number in range(4)],
}


def _parquet(folder: Path) -> Keys:
    for name, rows in TABLES.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    files = {name: f"{name}.parquet" for name in TABLES}
    return {**files, "columns": {"documents": {"doc_id": "doc_id"}}, "splits": ["train", "test"]}


def _tables(folder: Path) -> Keys:
    write(
        folder / "documents.csv",
        "doc_id,title,text",
        *(f'd{number},T{number},"{text}, x"' for number, text in enumerate(TEXTS)),
    )
    write(folder / "queries.jsonl", *map(json.dumps, TABLES["queries"]))
    rows = ("\t".join(map(str, row.values())) for row in TABLES["qrels"])
    write(folder / "qrels.tsv", "query_id\tdoc_id\trelevance", *rows)
    return {"queries": "queries.jsonl", "qrels": "qrels.tsv"}


def _own_names(folder: Path) -> Keys:
    """Tables whose columns have the names of nobody else: `init` finds them by the ids that they share."""
    write(folder / "notes.csv", "ref,wording", *(f'n-{number},"{text}, x"' for number, text in enumerate(TEXTS)))
    write(
        folder / "calls.jsonl",
        *(json.dumps({"no": f"c-{number}", "said": f"what is {number}?"}) for number in range(4)),
    )
    write(folder / "good.tsv", "call\tnote", *(f"c-{number}\tn-{number}" for number in range(4)))
    columns = {
        "documents": {"doc_id": "ref", "text": "wording"},
        "queries": {"query_id": "no", "text": "said"},
        "qrels": {"query_id": "call", "doc_id": "note"},
    }
    return {
        "documents": "notes.csv",
        "queries": "calls.jsonl",
        "qrels": "good.tsv",
        "columns": columns,
        "graded": False,
        "split": "train",
    }


def _answered_by(folder: Path) -> Keys:
    """Queries that each name the document that answers them."""
    write(folder / "notes.csv", "ref,wording", *(f'n-{number},"{text}, x"' for number, text in enumerate(TEXTS)))
    calls = ({"said": f"what is {number}?", "solved_with": f"n-{number}"} for number in range(4))
    write(folder / "calls.jsonl", *map(json.dumps, calls))
    columns = {
        "documents": {"doc_id": "ref", "text": "wording"},
        "queries": {"text": "said"},
        "qrels": {"doc_id": "solved_with"},
    }
    return {
        "documents": "notes.csv",
        "queries": "calls.jsonl",
        "qrels": "calls.jsonl",
        "columns": columns,
        "graded": False,
        "split": "train",
    }


def _pairs(folder: Path) -> Keys:
    write(
        folder / "faq.csv",
        "question;answer;split",
        *(f"what is {number}?;{TEXTS[number]};train" for number in range(4)),
    )
    columns = {"documents": {"text": "answer"}, "queries": {"text": "question"}}
    return {"documents": "faq.csv", "queries": "faq.csv", "paired": True, "columns": columns}


def _tripclick(folder: Path) -> Keys:
    documents = [
        f"<DOC>\n<DOCNO>{number}</DOCNO>\n<TITLE>T{number}</TITLE>\n<TEXT>{text}\nmore\n</TEXT>\n</DOC>"
        for number, text in enumerate(TEXTS)
    ]
    write(folder / "documents" / "docs_grp_00.txt", *documents)
    topics = [
        f"<top>\n\n<num> Number: {10 + number}\n<title> what is\n{number}\n\n<desc> x\n</top>" for number in range(3)
    ]
    write(folder / "topics" / "topics.head.txt", *topics)
    write(folder / "qrels" / "qrels.raw.head.txt", *(f"{10 + number} 0 {number} 1" for number in range(3)))
    return {"splits": {"train": ["head"]}, "labels": {"train": "raw"}}


def _multireqa(folder: Path) -> Keys:
    for split in ("train", "dev"):
        questions = [
            {
                "qid": f"{split}{row}",
                "question": f"what is {row}?",
                "answers": [text.split()[0]],
                "detected_answers": [{"text": text.split()[0], "char_spans": [[0, len(text.split()[0]) - 1]]}],
            }
            for row, text in enumerate(TEXTS)
        ]
        contexts = [
            {"context": f"{text}. And more.", "qas": [question]}
            for text, question in zip(TEXTS, questions, strict=True)
        ]
        write(folder / "mrqa" / split / "SQuAD.jsonl", '{"header": {}}', *map(json.dumps, contexts))
        parts = [
            {"candidate_id": f"SQuAD_{split}{row}/_{number}", "response_start": start, "response_end": end}
            for row, text in enumerate(TEXTS)
            for number, start, end in ((0, 0, len(text) + 1), (1, len(text) + 2, len(text) + 11))
        ]
        write(folder / split / "SQuAD" / "candidates.json", *map(json.dumps, parts))
    return {"name": "SQuAD"}


def _tsv(folder: Path) -> Keys:
    for split in ("train", "dev"):
        write(
            folder / f"{split}.tsv", "score\tsentence1\tsentence2", "4.5\tone a\tone b", "5.0\ttwo a\ttwo b", "1\tc\td"
        )
    return {"path": str(folder / "{split}.tsv"), "splits": {"train": "train", "test": "dev"}, "positive": 4.5}


def _senteval(folder: Path) -> Keys:
    for name in ("headlines", "FNWN", "OnWN"):
        write(folder / f"STS/STS13-en-test/STS.input.{name}.txt", "one a\tone b", "two a\ttwo b", "three a\tthree b")
        write(folder / f"STS/STS13-en-test/STS.gs.{name}.txt", "5.0", "", "1.5")
    return {"task": "STS13"}


def _senteval_classes(folder: Path) -> Keys:
    write(folder / "TREC/train_5500.label", "DESC:manner How did it go ?", "NUM:count How many are there ?")
    write(folder / "TREC/TREC_10.label", "LOC:city Where is it ?")
    return {"task": "TREC"}


def _sentences(folder: Path) -> Keys:
    files = {name: f"{name}.parquet" for name in TABLES}
    _parquet(folder)
    return {"of": {"format": "tables", "path": str(folder), **files}}


def _huggingface(folder: Path) -> Keys:
    import datasets

    places = {name: {"path": str(folder / name)} for name in TABLES}
    for name, rows in TABLES.items():
        plain = [{key: value for key, value in row.items() if key != "split"} for row in rows]
        datasets.Dataset.from_list(plain).save_to_disk(folder / name)
    return {"documents": places["documents"], "queries": places["queries"], "qrels": {"train": places["qrels"]}}


@cache
def collections() -> dict[str, tuple[str, Callable[[Path], Keys]]]:
    """By name: a format, and what writes a collection of it to a folder and returns its keys beside format and path.

    `docstrings` and `ir_datasets` are left out: they read what is installed, not what somebody gives.
    """
    formats = {
        "beir": _beir,
        "lines": _lines,
        "msmarco": _msmarco,
        "dpr": _dpr,
        "flagembedding": _flagembedding,
        "sentence_transformers": _sentence_transformers,
        "tevatron": _tevatron,
        "tables": _tables,
        "tripclick": _tripclick,
        "tsv": _tsv,
        "senteval": _senteval,
        "sentences": _sentences,
        "huggingface": _huggingface,
        "multireqa": _multireqa,
    }
    variants = {
        "tevatron with passages": ("tevatron", _older_tevatron),
        "tables in Parquet": ("tables", _parquet),
        "tables of pairs": ("tables", _pairs),
        "tables with own names": ("tables", _own_names),
        "tables of answered queries": ("tables", _answered_by),
        "senteval with classes": ("senteval", _senteval_classes),
    }
    return {name: (name, write) for name, write in formats.items()} | variants


def collection(name: str, folder: Path) -> Keys:
    """Write a collection; the declaration that reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    form, write = collections()[name]
    keys = write(folder)
    pathless = form in ("sentences", "huggingface")
    return {"format": form, **({} if pathless else {"path": str(folder)}), **keys}
