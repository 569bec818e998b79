"""Writes a collection with the marks among its judgements, as a folder in BEIR's layout, which `data:` reads."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.data.tables import QRELS, QUERIES
from sparring.components.systems import documents
from sparring.workflows.serving.marks import query_id, same
from sparring.workflows.serving.questions import Mark

UNJUDGED = "unjudged"
"""The split of a query that nobody judged."""


class Added(NamedTuple):
    """Changes that the marks make."""

    queries: int
    """New queries."""
    judgements: int
    changed: int
    """Judgements that replace one of the collection."""
    skipped: int
    """Marks of documents that have left the collection."""


def write(out: Path, data: Path, marks: Iterable[Mark], split: str) -> Added:
    """Write the collection in the folder `data` with marks. Existing queries are judged in their own split, new ones
    in `split`. A mark replaces the collection's judgement."""
    queries = pq.read_table(data / "queries.parquet", schema=QUERIES).to_pylist()
    qrels = pq.read_table(data / "qrels.parquet", schema=QRELS)
    out.mkdir(parents=True)
    documents.write(data / "documents.parquet", out / "corpus.jsonl")
    return _write(out, queries, qrels, list(marks), split)


def write_folder(out: Path, corpus: Path, marks: Iterable[Mark], split: str) -> Added:
    """Write the documents of an exported system with marks, which are then the only judgements."""
    out.mkdir(parents=True)
    shutil.copyfile(corpus, out / "corpus.jsonl")
    return _write(out, [], QRELS.empty_table(), list(marks), split)


def _write(out: Path, queries: list[dict[str, Any]], qrels: pa.Table, marks: list[Mark], split: str) -> Added:
    missing = {mark.doc_id for mark in marks}
    with (out / "corpus.jsonl").open(encoding="utf-8") as corpus:
        for line in corpus:
            missing.discard(json.loads(line)["_id"])
    by_text = {same(row["text"]): row for row in reversed(queries)}
    judged = {(row["query_id"], row["doc_id"]): (row["split"], row["relevance"]) for row in qrels.to_pylist()}
    earlier, before, added, changed = frozenset(judged), len(queries), 0, 0
    for mark in (mark for mark in marks if mark.doc_id not in missing):
        text = same(mark.query)
        if text not in by_text:
            by_text[text] = {"query_id": query_id(text), "text": mark.query, "split": split, "answers": None}
            queries.append(by_text[text])
        row = by_text[text]
        key, row_split = (row["query_id"], mark.doc_id), row["split"] if row["split"] != UNJUDGED else split
        changed, added = changed + (key in earlier), added + 1
        judged[key] = (judged.get(key, (row_split, 0))[0], int(bool(mark.relevant)))
    with (out / "queries.jsonl").open("w", encoding="utf-8") as file:
        for row in queries:
            metadata = {"metadata": {"answers": row["answers"]}} if row["answers"] else {}
            file.write(json.dumps({"_id": row["query_id"], "text": row["text"], **metadata}, ensure_ascii=False) + "\n")
    (out / "qrels").mkdir()
    for name in dict.fromkeys(row_split for row_split, _ in judged.values()):
        with (out / "qrels" / f"{name}.tsv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(["query-id", "corpus-id", "score"])
            rows.writerows([*key, relevance] for key, (row_split, relevance) in judged.items() if row_split == name)
    return Added(len(queries) - before, added, changed, sum(mark.doc_id in missing for mark in marks))
