"""Rankings that say which documents bear an answer: against a plain loop, in one process and through Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.answers import matcher, normalize
from sparring.components.data.tables import ANSWERED, QUERIES, check, document_text
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps import answers
from sparring.workflows.steps.answers import AnswerConfig, answering
from tests.support import tiny, toy


def with_answers(data: Path, to: Path, own: dict[str, list[str]]) -> Path:
    """A copy of the collection whose queries have answers."""
    shutil.copytree(data, to)
    rows = [
        {**row, "answers": own.get(row["query_id"], [])} for row in pq.read_table(data / "queries.parquet").to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), to / "queries.parquet")
    return to


@pytest.fixture
def asked(tmp_path: Path, data: Path) -> Path:
    """Query i is answered by the second word of document i, and by a word that none has."""
    rows = pq.read_table(data / "documents.parquet").to_pylist()
    answers = {f"q{i}": [rows[i]["text"].split()[1], "nowhere"] for i in range(24)}
    return with_answers(data, tmp_path / "data", answers)


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    """Every query finds 25 documents, in no order of theirs."""
    lists = {f"q{i}": [f"d{(7 * i + 11 * k) % 40}" for k in range(25)] for i in range(24)}
    return toy.write_ranking(tmp_path / "ranking", lists)


def run(
    out: Path, machine: Machine, data: Path, ranking: Path, splits: list[str], **config: Any
) -> list[dict[str, Any]]:
    out.mkdir()
    answering(out, machine, data=data, ranking=ranking, splits=splits, config=AnswerConfig(**config))
    assert tiny.kept(out).keys() == {"ranking.parquet"}
    return check(pq.read_table(out / "ranking.parquet"), ANSWERED, source="ranking").to_pylist()


@pytest.mark.parametrize("fields", ["text", "title and text"])
def test_hits_are_those_of_a_plain_loop(tmp_path: Path, asked: Path, ranking: Path, fields: str) -> None:
    documents = {row["doc_id"]: row for row in pq.read_table(asked / "documents.parquet").to_pylist()}
    queries = {row["query_id"]: row for row in pq.read_table(asked / "queries.parquet").to_pylist()}
    rows = run(tmp_path / "out", toy.INLINE, asked, ranking, ["test", "train"], fields=fields)
    kept = [
        row
        for row in pq.read_table(ranking / "ranking.parquet").to_pylist()
        if queries[row["query_id"]]["split"] != "dev"
    ]
    assert [{key: row[key] for key in kept[0]} for row in rows] == kept
    for row in rows:
        document = documents[row["doc_id"]]
        text = document["text"] if fields == "text" else document_text(document["title"], document["text"])
        assert row["hit"] == matcher(queries[row["query_id"]]["answers"])(normalize(text))
    assert 0 < sum(row["hit"] for row in rows) < len(rows)


def test_a_ranking_is_read_in_pieces(
    tmp_path: Path, asked: Path, ranking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any size, some of them without a row of the splits: the same file."""
    whole = run(tmp_path / "whole", toy.INLINE, asked, ranking, ["test", "dev"])
    for rows in (1, 7, 60):
        monkeypatch.setattr(answers, "ROWS", rows)
        assert run(tmp_path / f"by {rows}", toy.INLINE, asked, ranking, ["test", "dev"]) == whole


def test_nothing_found_bears_nothing(tmp_path: Path, asked: Path) -> None:
    ranking = toy.write_ranking(tmp_path / "of train", {"q1": ["d3"]})
    assert run(tmp_path / "out", toy.INLINE, asked, ranking, ["test"]) == []


def test_through_ray_it_is_the_same(tmp_path: Path, ray: Machine, asked: Path, ranking: Path) -> None:
    alone = run(tmp_path / "alone", toy.INLINE, asked, ranking, ["test"])
    assert run(tmp_path / "ray", ray, asked, ranking, ["test"]) == alone


def test_a_pattern_that_is_none_names_its_query(tmp_path: Path, data: Path, ranking: Path) -> None:
    dataset = with_answers(data, tmp_path / "data", {"q0": ["("]})
    with pytest.raises(UserError, match=r"query q0: the answer '\(' is not a regular expression"):
        run(tmp_path / "out", toy.INLINE, dataset, ranking, ["test"], mode="regex")
