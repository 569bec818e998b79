"""`rerank`: documents in the order of a run's ranker, for a query or for the queries of a run file."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.sources import trec
from tests.support.tiny import Place, Said

RANKER = ["--system", "ranker over retriever 1"]
DEPTH = 10


def tables(place: Place) -> list[str]:
    """Options that name the queries and the documents of a run."""
    data = place.artifact("data")
    return ["--queries", str(data / "queries.parquet"), "--documents", str(data / "documents.parquet")]


def orders(table: pa.Table) -> dict[str, list[str]]:
    """Return the documents of each query, best first."""
    lists: dict[str, list[str]] = {}
    for row in table.sort_by([("query_id", "ascending"), ("rank", "ascending")]).to_pylist():
        lists.setdefault(row["query_id"], []).append(row["doc_id"])
    return lists


def test_a_run_file_gets_the_order_of_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    """Documents with the same text are taken for one: rounding decides which comes first."""
    ranking, file = tmp_path / "retriever.trec", tmp_path / "reranked.trec"
    before = pq.read_table(played.artifact("retriever 1 ranking (test)") / "ranking.parquet")
    trec.write_ranking(before, ranking, "x")
    words = ["--ranking", str(ranking), *tables(played), "--depth", str(DEPTH), "-o", str(file), *RANKER]
    assert played("rerank", *words) == 0
    rows = pq.read_table(played.artifact("data") / "documents.parquet").to_pylist()
    texts = {row["doc_id"]: (row["title"], row["text"]) for row in rows}
    expected = orders(pq.read_table(played.artifact("ranker over retriever 1 (test)") / "ranking.parquet"))
    reranked = orders(trec.read_ranking(file))
    assert reranked.keys() == expected.keys()
    for query, documents in expected.items():
        assert [texts[doc_id] for doc_id in reranked[query]] == [texts[doc_id] for doc_id in documents]
    assert said()[1] == f"{file}: {len(expected)} queries, {DEPTH * len(expected)} pairs scored\n"


def test_documents_of_a_list_are_ordered(played: Place, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"comi\n\nbarami\x1b[31m comi\nbara\n")))
    assert played("rerank", "barami comi", *RANKER) == 0
    lines = [re.fullmatch(r"(\d)\. \((-?\d+\.\d{3})\)  (\d)  (.*)", line) for line in said()[0].splitlines()]
    rows = [line.groups() for line in lines if line]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert sorted(row[2:] for row in rows) == [("1", "comi"), ("3", "barami [31m comi"), ("4", "bara")]
    scores = [float(row[1]) for row in rows]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "rerank: give either QUERY, or --ranking FILE."),
        (["barami", "--ranking", "x.trec"], "rerank: give either QUERY, or --ranking FILE."),
        ([" "], "QUERY: it is ' '. Write a text that is not blank."),
        (["--ranking", "x.trec"], "--queries: it is missing. --ranking needs it."),
        (
            ["--ranking", "x.trec", "--queries", "q", "--documents", "d", "-o", "o", "--depth", "0"],
            "--depth: it is 0. Use 1 or more.",
        ),
        (
            ["barami", "--system", "retriever 1", "--documents", "DATA/documents.parquet"],
            "'retriever 1' has no ranker.",
        ),
    ],
)
def test_a_mistake_in_the_arguments(played: Place, said: Said, words: list[str], message: str) -> None:
    placed = [word.replace("DATA", str(played.artifact("data"))) for word in words]
    assert played("rerank", *placed) == 2
    assert message in said()[1]


def test_a_document_without_text_is_named(played: Place, tmp_path: Path, said: Said) -> None:
    ranking = tmp_path / "ranking.trec"
    ranking.write_text("q1 Q0 nobody 1 2.0 x\n")
    words = ["--ranking", str(ranking), *tables(played), "-o", str(tmp_path / "out.trec"), *RANKER]
    assert played("rerank", *words) == 2
    assert f"it has no text with the id 'nobody', which {ranking} ranks. Add the text.\n" in said()[1]
    assert not (tmp_path / "out.trec").exists()


def test_an_empty_run_file_is_refused(played: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "empty.trec").write_text("")
    words = ["--ranking", str(tmp_path / "empty.trec"), *tables(played), "-o", str(tmp_path / "out.trec")]
    assert played("rerank", *words) == 2
    assert "empty.trec: it ranks no documents. Give a run file with rows.\n" in said()[1]


def test_two_texts_with_one_id_are_refused(played: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "documents.csv").write_text("_id,text\nd1,a\nd1,b\n")
    ranking = tmp_path / "ranking.trec"
    ranking.write_text("q1 Q0 d1 1 2.0 x\n")
    queries = tables(played)[1]
    words = ["--ranking", str(ranking), "--queries", queries, "--documents", str(tmp_path / "documents.csv")]
    assert played("rerank", *words, "-o", str(tmp_path / "out.trec"), *RANKER) == 2
    assert "two texts have the id 'd1'. Give each its own id." in said()[1]
