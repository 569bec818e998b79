"""Sentences of another source as candidates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import Config, UserError, parse
from sparring.components.data.answers import matcher, normalize
from sparring.components.sources.base import AnySource
from sparring.components.sources.records import Document, Judgement, Query
from sparring.workflows.steps.ingest import ingest
from tests.support import toy
from tests.support.errors import refused
from tests.support.sources import source, without_place, write

DATA = os.environ.get("SPARRING_TEST_DATA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three documents; an answer that stands in two sentences, one across two, and one that only the second document
    has."""
    documents = [
        {"_id": "d1", "title": "Ada", "text": "Ada was born in 1815. She wrote notes in 1843! In 1815 she was small."},
        {"_id": "d2", "title": "", "text": "One sentence about notes"},
        {"_id": "d3", "title": "Only a title", "text": ""},
    ]
    queries = [
        {"_id": "q1", "text": "when?", "metadata": {"answers": ["nowhere", "1815"]}},
        {"_id": "q2", "text": "across?", "metadata": {"answers": ["1843! In"]}},
        {"_id": "q3", "text": "what?", "metadata": {"answers": ["Notes"]}},
        {"_id": "q4", "text": "none?"},
    ]
    write(tmp_path / "corpus.jsonl", *map(json.dumps, documents))
    write(tmp_path / "queries.jsonl", *map(json.dumps, queries))
    write(tmp_path / "qrels/train.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2", "q2\td1\t1", "q4\td1\t1")
    write(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "q3\td2\t1", "q3\td1\t0", "q3\td3\t1")
    return tmp_path


def cut(folder: Path, **keys: Any) -> Any:
    return source(format="sentences", of={"format": "beir", "path": str(folder)}, **keys)


def test_a_candidate_is_a_sentence_in_its_document(folder: Path) -> None:
    result = cut(folder)
    whole = "Ada was born in 1815. She wrote notes in 1843! In 1815 she was small."
    assert without_place(result.read_documents()) == [
        ("d1#1", "Ada", f"Ada was born in 1815.\n{whole}"),
        ("d1#2", "Ada", f"She wrote notes in 1843!\n{whole}"),
        ("d1#3", "Ada", f"In 1815 she was small.\n{whole}"),
        ("d2#1", "", "One sentence about notes\nOne sentence about notes"),
        ("d3#1", "Only a title", ""),
    ]
    alone = [record[2] for record in cut(folder, context="none").read_documents()]
    assert alone[1:] == ["She wrote notes in 1843!", "In 1815 she was small.", "One sentence about notes", ""]
    assert {record.place for record in result.read_documents() if record.doc_id.startswith("d1")} == {
        f"{folder}/corpus.jsonl:1"
    }


def test_relevant_are_the_sentences_of_relevant_documents_that_bear_an_answer(folder: Path) -> None:
    """d1's sentence about notes is not q3's: its document is not."""
    result = cut(folder)
    assert list(result.read_queries()) == list(result.of.read_queries())
    assert without_place(result.read_qrels()) == [
        ("q1", "d1#1", 2, "train"),
        ("q1", "d1#3", 2, "train"),
        ("q3", "d2#1", 1, "test"),
    ]


def test_ingested_it_is_a_collection_with_samples_and_files(folder: Path, tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    summary = ingest(out, toy.INLINE, source=cut(folder, sample={"train": 2}))
    assert (summary["documents"], summary["queries"]) == (5, {"train": 2, "test": 1})
    assert set(cut(folder).files()) == {"corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv"}
    judged = pq.read_table(out / "qrels.parquet").to_pylist()
    assert all("#" in row["doc_id"] for row in judged)


def test_what_dangles_is_named_where_it_stands(folder: Path, tmp_path: Path) -> None:
    lines = ["query-id\tcorpus-id\tscore", "q1\td1\t1", "q1\td9\t1", "q9\td1\t1"]
    write(folder / "qrels/train.tsv", *lines)
    (out := tmp_path / "out").mkdir()
    with refused("train.tsv:4", "judgement-of-a-missing-query", "'q9'"):
        ingest(out, toy.INLINE, source=cut(folder))
    summary = ingest(out, toy.INLINE, source=cut(folder, on_bad="drop"))
    reasons = {reason: result["count"] for reason, result in summary["dropped"].items()}
    assert reasons == {"judgement of a missing query": 1, "judgement of a missing document": 1}


def test_without_answers_no_sentence_can_be_relevant(folder: Path) -> None:
    write(folder / "queries.jsonl", *(json.dumps({"_id": f"q{i}", "text": "?"}) for i in range(1, 5)))
    with pytest.raises(UserError, match="format sentences: the queries of `of` have no answers"):
        list(cut(folder).read_qrels())


class Recipe(Config):
    """A config with a source."""

    data: AnySource


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ({"sample": {"train": 1}}, r"data: of\.sample: move this key out of `of`"),
        ({"on_bad": "drop"}, r"data: of\.on_bad: move this key out of `of`"),
        ({"format": "bier"}, r"data\.of: unknown format 'bier'; accepted: .*beir, "),
        ({"pth": 1}, r"data\.of\.pth: unknown key; accepted: format, on_bad, "),
    ],
)
def test_a_wrong_declaration_is_one_clear_line(inside: dict[str, Any], message: str) -> None:
    tree = {"data": {"format": "sentences", "of": {"format": "beir", "path": "x", **inside}}}
    with pytest.raises(UserError, match=message):
        parse(Recipe, tree, where="c.yaml")


@pytest.mark.skipif(DATA is None, reason="SPARRING_TEST_DATA is not set")
def test_squad() -> None:
    """Nearly every question of SQuAD is answered within one sentence of its paragraph."""
    squad = {"format": "beir", "path": f"{DATA}/squad", "splits": ["dev"]}
    result = source(format="sentences", of=squad, context="none")
    documents = {record.doc_id: record.text for record in result.read_documents() if isinstance(record, Document)}
    queries = {record.query_id: record.answers for record in result.read_queries() if isinstance(record, Query)}
    qrels = [record for record in result.read_qrels() if isinstance(record, Judgement)]
    assert 4 * 20_958 < len(documents) < 6 * 20_958
    assert len({qrel.query_id for qrel in qrels}) > 0.98 * len(queries)
    assert len(qrels) < 1.5 * len(queries)
    for item in qrels[::97]:
        assert matcher(queries[item.query_id])(normalize(documents[item.doc_id]))
