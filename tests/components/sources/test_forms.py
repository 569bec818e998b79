"""Ids that look the same and are written in two Unicode forms."""

from __future__ import annotations

import importlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.sources.base import READ, declared, formats
from sparring.components.sources.records import Bad
from sparring.components.sources.survey import survey
from sparring.workflows.steps.ingest import ingest
from tests.support import toy

NFC = "caf\u00e9"
NFD = unicodedata.normalize("NFD", NFC)
HOW = "Write `ids: NFC` under `data` to read all ids in one form."


def lines(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def beir(folder: Path) -> dict[str, Any]:
    lines(folder / "corpus.jsonl", *({"_id": f"{NFD}-{n}", "text": f"text {n}"} for n in (1, 2)))
    lines(folder / "queries.jsonl", {"_id": f"q-{NFD}", "text": "asked?"})
    lines(folder / "qrels" / "test.tsv", f"q-{NFC}\t{NFC}-1\t1")
    return {"format": "beir", "path": str(folder)}


def tables(folder: Path) -> dict[str, Any]:
    lines(folder / "documents.csv", "doc_id,text", f"{NFD}-1,text 1", f"{NFD}-2,text 2")
    lines(folder / "queries.csv", "query_id,text", f"q-{NFD},asked?")
    lines(folder / "qrels.csv", "query_id,doc_id,relevance,split", f"q-{NFC},{NFC}-1,1,test")
    return {"format": "tables", "path": str(folder), "queries": "queries.csv", "qrels": "qrels.csv"}


def parquet(folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    subject = {
        "documents": {"doc_id": [f"{NFD}-1", f"{NFD}-2"], "text": ["text 1", "text 2"]},
        "queries": {"query_id": [f"q-{NFD}"], "text": ["asked?"], "split": ["test"]},
        "qrels": {"query_id": [f"q-{NFC}"], "doc_id": [f"{NFC}-1"], "relevance": [1]},
    }
    for name, columns in subject.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return {"format": "tables", "path": str(folder), **{name: f"{name}.parquet" for name in subject}}


def msmarco(folder: Path) -> dict[str, Any]:
    lines(folder / "collection.tsv", f"{NFD}-1\ttext 1", f"{NFD}-2\ttext 2")
    lines(folder / "queries.test.tsv", f"q-{NFD}\tasked?")
    lines(folder / "qrels.test.tsv", f"q-{NFC}\t0\t{NFC}-1\t1")
    return {"format": "msmarco", "path": str(folder)}


def sentences(folder: Path) -> dict[str, Any]:
    output = beir(folder)
    lines(folder / "queries.jsonl", {"_id": f"q-{NFD}", "text": "asked?", "answers": ["text 1"]})
    return {"format": "sentences", "of": output}


MADE = {item.__name__: item for item in (beir, tables, parquet, msmarco, sentences)}


@pytest.mark.parametrize("kind", MADE)
def test_ids_in_two_forms_are_one_with_the_key(tmp_path: Path, kind: str) -> None:
    (tmp_path / "out").mkdir()
    keys = {**MADE[kind](tmp_path / "in"), "ids": "NFC"}
    summary = ingest(tmp_path / "out", toy.INLINE, source=declared(keys))
    assert summary["judgements"] == {"test": 1}
    names = {
        name: pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pydict()
        for name in ("documents", "queries", "qrels")
    }
    end = "#1" if kind == "sentences" else ""
    assert names["documents"]["doc_id"][0] == names["qrels"]["doc_id"][0] == f"{NFC}-1{end}"
    assert names["queries"]["query_id"] == names["qrels"]["query_id"] == [f"q-{NFC}"]
    assert names["queries"]["split"] == ["test"]


@pytest.mark.parametrize("kind", ["beir", "tables", "msmarco"])
def test_without_the_key_it_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"exists in a different Unicode form, NFD\. " + HOW):
        ingest(tmp_path / "out", toy.INLINE, source=declared(MADE[kind](tmp_path / "in")))


def test_a_plan_names_the_key_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"there is no query 'q-{NFC}': it exists in a different Unicode form.* {HOW}"):
        survey(declared(msmarco(tmp_path)), "", queries=None, documents=None)


def test_training_data_offers_documents_in_one_form(tmp_path: Path) -> None:
    """Of rows that name a passage in two forms it is there once."""
    passages = [[{"docid": name, "title": "", "text": "text"}] for name in (f"{NFC}-1", f"{NFD}-1")]
    rows = (
        {
            "query_id": f"q{position}",
            "query": f"asked {position}?",
            "positive_passages": item,
            "negative_passages": [],
        }
        for position, item in enumerate(passages)
    )
    lines(tmp_path / "in" / "train.jsonl", *rows)
    (tmp_path / "out").mkdir()
    keys = {"format": "tevatron", "path": str(tmp_path / "in"), "groups": {"train": "train.jsonl"}, "ids": "NFC"}
    assert ingest(tmp_path / "out", toy.INLINE, source=declared(keys))["documents"] == 1
    inputs = pq.read_table(tmp_path / "out" / "given.parquet").to_pydict()
    assert inputs["doc_ids"] == [[f"{NFC}-1"], [f"{NFC}-1"]]


def test_two_documents_whose_ids_are_one_are_refused(tmp_path: Path) -> None:
    keys = {**beir(tmp_path / "in"), "ids": "NFC"}
    lines(tmp_path / "in" / "corpus.jsonl", *({"_id": f"{form}-1", "text": "text"} for form in (NFC, NFD)))
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=f"duplicate document id '{NFC}-1'"):
        ingest(tmp_path / "out", toy.INLINE, source=declared(keys))


def test_no_format_reads_ids_past_the_key() -> None:
    """Each method of a format that yields records is one of those whose ids are brought into the form."""
    for name in formats():
        source = importlib.import_module(f"sparring.components.sources.{name}").Source
        reading = {var for cls in source.__mro__ for var in vars(cls) if var.startswith("read_")}
        assert reading - {"read_labelled"} <= set(READ), name


def test_what_is_bad_is_told_as_it_is_written(tmp_path: Path) -> None:
    keys = {**beir(tmp_path), "ids": "NFC"}
    lines(tmp_path / "corpus.jsonl", {"_id": f"{NFD} 1", "text": "text"})
    (bad,) = declared(keys).read_documents()
    assert isinstance(bad, Bad)
    assert bad.id == f"{NFD} 1"
