"""Damaged collections of every format: what is read is sound, or one line says what is wrong."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import Config, UserError, parse
from sparring.components.sources.base import AnySource, Source
from sparring.components.sources.inspection import Inspection
from sparring.components.sources.survey import survey
from sparring.workflows.steps.ingest import ingest
from tests.support import toy
from tests.support.formats import collections
from tests.support.hostile import Cases, cases, counted, one_line
from tests.support.mutations import Damage, damage, damages, texts_in


class Recipe(Config):
    """A config with a source."""

    data: AnySource


@pytest.fixture(autouse=True)
def _not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is not waited for."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.mark.parametrize("name", collections())
def test_a_whole_collection_is_read(name: str, made: Any, tmp_path: Path) -> None:
    source = parse(Recipe, {"data": made(name, tmp_path / "in")}, where="c.yaml").data
    out = tmp_path / "out"
    out.mkdir()
    summary = ingest(out, toy.INLINE, source=source)
    assert summary["documents"]
    assert summary["judgements"] or name in ("lines", "senteval with classes")
    assert summary["dropped"] == {}
    sound(out)


@pytest.mark.parametrize("name", collections())
@pytest.mark.parametrize("path", ["9" * 5_000, "x" * 300], ids=["a long path", "a long name"])
def test_a_folder_that_no_disk_can_have(name: str, path: str, made: Any, tmp_path: Path) -> None:
    whole = json.dumps(made(name, tmp_path / "in"))
    assert outcome(json.loads(whole.replace(str(tmp_path / "in"), path)), "fail", tmp_path) == "refused"


@pytest.mark.parametrize("size", cases(fast=80))
@pytest.mark.parametrize("name", collections())
def test_a_damaged_collection_is_sound_or_one_line(name: str, size: Cases, made: Any, tmp_path: Path) -> None:
    def case(done: list[Damage], on_bad: str) -> str:
        with tempfile.TemporaryDirectory(dir=tmp_path) as place:
            return outcome(damage(Path(place) / "in", made(name, Path(place) / "in"), done), on_bad, Path(place))

    counts = counted(size, case, damages, lambda random: random.choice(["fail", "drop"]))
    assert counts["refused"]


def outcome(keys: Any, on_bad: str, place: Path) -> str:
    """Read a collection in each way that there is; whether it was accepted or refused."""
    out = place / "out"
    out.mkdir()
    try:
        keys = {"on_bad": on_bad, **keys} if isinstance(keys, dict) else keys
        source: Source = parse(Recipe, {"data": keys}, where="c.yaml").data
    except UserError as error:
        return one_line(error, "c.yaml: ")
    texts = texts_in(keys)
    paths = (str(Path(text)) for text in texts)  # "." for an empty one
    named = (str(place), "format ", "data.", *filter(None, texts), *paths, *files_of(source))
    for look in (lambda: Inspection(source), lambda: survey(source, "", queries=None, documents=None)):
        try:
            look()
        except UserError as error:
            one_line(error, *named)
    try:
        ingest(out, toy.INLINE, source=source)
    except UserError as error:
        return one_line(error, *named)
    sound(out)
    return "accepted"


def files_of(source: Source) -> list[str]:
    """The files that a source names, which may be relative to the working directory; none where it names none."""
    try:
        return [str(path) for path in source.files().values()]
    except UserError:
        return []


def sound(out: Path) -> None:
    """Ids are words, each once; texts are there; judgements are of what is there."""
    documents, queries, qrels = (rows(out / f"{name}.parquet") for name in TABLES)
    doc_ids = ids(documents, "doc_id")
    query_ids = ids(queries, "query_id")
    assert all(row["title"].strip() or row["text"].strip() for row in documents)
    assert all(row["text"].strip() and None not in row["answers"] for row in queries)
    splits = {row["query_id"]: row["split"] for row in queries}
    assert all(isinstance(split, str) and split and split.isprintable() for split in splits.values())
    assert len({(row["query_id"], row["doc_id"]) for row in qrels}) == len(qrels)
    for row in qrels:
        assert row["doc_id"] in doc_ids
        assert row["query_id"] in query_ids
        assert splits[row["query_id"]] == row["split"]
        assert abs(row["relevance"]) < 10**9
    if (out / "given.parquet").exists():
        for row in rows(out / "given.parquet"):
            assert row["query_id"] in query_ids
            assert set(row["doc_ids"]) <= doc_ids
            assert len(row["doc_ids"]) == len(row["targets"])
            assert row["teacher"] is None or len(row["teacher"]) == len(row["targets"])
    if (out / "examples.parquet").exists():
        for row in rows(out / "examples.parquet"):
            assert {row["first"], row["second"]} - {None} <= doc_ids
            assert (row["label"] is None) != (row["score"] is None)
            assert row["score"] is None or abs(row["score"]) < float("inf")


TABLES = ("documents", "queries", "qrels")


def rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a table."""
    with pq.ParquetFile(table) as file:
        return file.read(use_threads=False).to_pylist()


def ids(rows: list[dict[str, Any]], column: str) -> set[str]:
    """The ids of a table: words without control characters, each once."""
    values = {row[column] for row in rows}
    assert len(values) == len(rows)
    assert all(
        name.split() == [name] and not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in name)
        for name in values
    )
    return values
