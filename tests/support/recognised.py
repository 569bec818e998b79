"""Small collections in folders, as people have them: one in many layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.sources import write

DOCUMENTS = [(f"d{i}", f"text number {i} says something") for i in range(12)]
QUERIES = [(f"q{i}", f"what says number {i}?", "train" if i % 3 else "test") for i in range(12)]
NOTE = "what is to be done about the fault of kind"


def jsonl(path: Path, *rows: dict[str, Any]) -> None:
    write(path, *map(json.dumps, rows))


def beir(folder: Path) -> None:
    jsonl(folder / "corpus.jsonl.gz", *({"_id": d, "title": "", "text": text} for d, text in DOCUMENTS))
    jsonl(folder / "queries.jsonl", *({"_id": q, "text": text} for q, text, _ in QUERIES))
    for split in ("train", "test"):
        lines = [f"{q}\td{q[1:]}\t1" for q, _, query_split in QUERIES if query_split == split]
        write(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore", *lines)


def msmarco(folder: Path) -> None:
    write(folder / "collection.tsv", *(f"{d}\thttp://a.b\tA title\t{text}" for d, text in DOCUMENTS))
    for split in ("train", "dev"):
        rows = [(q, text) for q, text, query_split in QUERIES if (query_split == "train") == (split == "train")]
        write(folder / f"queries.{split}.tsv", *(f"{q}\t{text}" for q, text in rows))
        write(folder / f"qrels.{split}.tsv", *(f"{q} 0 d{q[1:]} 1" for q, _ in rows))


def dpr(folder: Path) -> None:
    write(folder / "passages.tsv", "id\ttext\ttitle", *(f"{d[1:]}\t{text}\tA title" for d, text in DOCUMENTS))
    questions = [
        {"question": text, "answers": ["x"], "positive_ctxs": [{"passage_id": q[1:]}]} for q, text, _ in QUERIES
    ]
    (folder / "biencoder-train.json").write_text(json.dumps(questions[:8]))
    (folder / "biencoder-dev.json").write_text(json.dumps(questions[8:]))
    write(folder / "nq-test.csv", *(f"{text}\t['x']" for _, text, _ in QUERIES[:3]))


def csv(folder: Path) -> None:
    write(folder / "articles.csv", "ID,Headline,Body", *(f'{d},A title,"{text}, twice"' for d, text in DOCUMENTS))
    write(folder / "questions.csv", "qid,question,split", *(f"{q},{text},{split}" for q, text, split in QUERIES))
    write(folder / "judgements.csv", "query_id,doc_id,relevance", *(f"{q},d{q[1:]},1" for q, _, _ in QUERIES))


def plain_names(folder: Path) -> None:
    write(folder / "documents.csv", "id,headline,body", *(f"{d},A title,{text}" for d, text in DOCUMENTS))
    write(folder / "queries.csv", "id,question", *(f"{q},{text}" for q, text, _ in QUERIES))
    write(folder / "judgements.csv", "query,document,grade", *(f"{q},d{q[1:]},1" for q, _, _ in QUERIES))


def numbers(folder: Path) -> None:
    """Ids in columns that are not called so, beside others of numbers: the judgements tell them."""
    articles = (f"{1900 + i},{d},A title,{text}" for i, (d, text) in enumerate(DOCUMENTS))
    write(folder / "abstracts.csv", "year,number,headline,body", *articles)
    write(
        folder / "questions.csv",
        "key,asked by,question",
        *(f"{q},{i},{text}" for i, (q, text, _) in enumerate(QUERIES)),
    )
    write(folder / "judgements.csv", "question,abstract,grade", *(f"{q},d{q[1:]},1" for q, _, _ in QUERIES))


def tickets(folder: Path) -> None:
    """No column of ids is called so in any of the three."""
    jsonl(folder / "articles.jsonl", *({"article_no": d, "name": "A", "content": text} for d, text in DOCUMENTS))
    write(folder / "asked.tsv", "ticket\tquestion", *(f"{q}\t{text}" for q, text, _ in QUERIES))
    write(folder / "relevant.csv", "ticket,article,label", *(f"{q},d{q[1:]},1" for q, _, _ in QUERIES))


def linked(folder: Path) -> None:
    """Nothing is called as expected but the documents' columns, and what answers what has no relevances."""
    write(folder / "pages.csv", "page,heading,body", *(f"P{d},A title,{text}" for d, text in DOCUMENTS))
    jsonl(folder / "wanted.jsonl", *({"nr": int(q[1:]), "by": "me", "words": text} for q, text, _ in QUERIES))
    write(folder / "answered.tsv", "nr\tpage", *(f"{q[1:]}\tPd{q[1:]}" for q, _, _ in QUERIES))


def cases_of(folder: Path) -> None:
    """No table has a column that is called as expected."""
    jsonl(folder / "reports.jsonl", *({"serial": f"R{d}", "notes": text} for d, text in DOCUMENTS))
    write(folder / "opened.csv", "case,by,wording", *(f"C{q},me,{text[:9]}" for q, text, _ in QUERIES))
    write(folder / "solved.tsv", "case\treport", *(f"C{q}\tRd{q[1:]}" for q, _, _ in QUERIES))


def answered(folder: Path) -> None:
    """Each ticket names the article that solved it. Both tables have numbers of rows too."""
    rows = (f"{i},KB{d},A title,{text}" for i, (d, text) in enumerate(DOCUMENTS, 1))
    write(folder / "articles.csv", "row,article_no,headline,body", *rows)
    tickets = (
        {"row": n, "ticket": f"T{q}", "wording": text, "solved_by": f"KBd{n // 2}"}
        for n, (q, text, _) in enumerate(QUERIES)
    )
    jsonl(folder / "tickets.jsonl", *tickets)


def answered_without_ids(folder: Path) -> None:
    """The same in two columns; two questions are the same, so that no column is one of ids."""
    write(folder / "articles.csv", "article_no,body", *(f"KB{d},{text}" for d, text in DOCUMENTS))
    texts = [QUERIES[max(1, n)][1] for n in range(len(QUERIES))]
    write(folder / "tickets.tsv", "wording\tsolved by", *(f"{text}\tKBd{n // 2}" for n, text in enumerate(texts)))


def tsv(folder: Path) -> None:
    write(folder / "docs.tsv", "doc_id\ttext", *(f"{d}\t{text}" for d, text in DOCUMENTS))
    write(folder / "topics.tsv.gz", "id\ttext", *(f"{q}\t{text}" for q, text, _ in QUERIES))
    write(folder / "qrels.tsv", "query_id\tpid\tlabel", *(f"{q}\td{q[1:]}\t1" for q, _, _ in QUERIES))


def objects(folder: Path) -> None:
    jsonl(folder / "docs.jsonl", *({"docid": d, "contents": text} for d, text in DOCUMENTS))
    jsonl(folder / "queries.jsonl", *({"_id": q, "query": text, "split": split} for q, text, split in QUERIES))
    jsonl(folder / "qrels.jsonl", *({"query_id": q, "doc_id": f"d{q[1:]}", "score": 1} for q, _, _ in QUERIES))


def parquet(folder: Path) -> None:
    (folder / "documents").mkdir()
    for part in range(2):
        ids, texts = zip(*DOCUMENTS[part::2], strict=True)
        pq.write_table(pa.table({"id": ids, "text": texts}), folder / "documents" / f"{part}.parquet")
    ids, texts, splits = zip(*QUERIES, strict=True)
    pq.write_table(pa.table({"query_id": ids, "text": texts}), folder / "queries.parquet")
    judged = {"query_id": ids, "doc_id": [f"d{q[1:]}" for q in ids], "relevance": [1] * len(ids), "split": splits}
    pq.write_table(pa.table(judged), folder / "qrels.parquet")


def pairs(folder: Path) -> None:
    rows = [f'"{text}",{DOCUMENTS[i][1]}' for i, (_, text, _) in enumerate(QUERIES)]
    write(folder / "faq.csv", "Question,Answer", *rows)
