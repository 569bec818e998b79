"""TREC's files: what is written keeps its order in every tool, and what is wrong is named by its line."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.components.data.tables import QRELS, RANKING
from sparring.components.sources import trec
from sparring.components.sources.trec import read_qrels, read_ranking, write_qrels, write_ranking
from tests.support.errors import refused


def ranking(found: dict[str, list[tuple[str, float]]]) -> pa.Table:
    rows = [
        {"query_id": query, "doc_id": document, "rank": rank, "score": score}
        for query, documents in found.items()
        for rank, (document, score) in enumerate(documents, 1)
    ]
    return pa.Table.from_pylist(rows, schema=RANKING)


def order(table: pa.Table) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for row in table.to_pylist():
        result.setdefault(row["query_id"], []).append(row["doc_id"])
    return result


TIES = {
    "q1": [("a", 2.0), ("c", 1.0), ("b", 1.0), ("d", 1.0), ("e", 0.5)],  # neither order of ids
    "q2": [("b", 0.0), ("a", 0.0), ("z(1)", -0.0), ("np.float32(7)", -3.5)],
    "q3": [("a", 1e30), ("b", 1e30), ("c", 1e-30), ("d", 1e-30), ("e", -1e30)],
}


def test_what_is_written_is_read_in_the_same_order(tmp_path: Path) -> None:
    write_ranking(ranking(TIES), tmp_path / "run.txt", "ours")
    again = read_ranking(tmp_path / "run.txt")
    assert order(again) == {query: [name for name, _ in documents] for query, documents in TIES.items()}
    assert again["rank"].to_pylist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(
        again["score"].to_numpy(), [s for d in TIES.values() for _, s in d], rtol=1e-6, atol=1e-30
    )


def test_scores_fall_strictly_by_the_smallest_step(tmp_path: Path) -> None:
    write_ranking(ranking(TIES), tmp_path / "run.txt", "ours")
    lines = [line.split() for line in (tmp_path / "run.txt").read_text().splitlines()]
    assert lines[0] == ["q1", "Q0", "a", "1", "2.0", "ours"]
    assert lines[-1] == ["q3", "Q0", "e", "5", "-1e+30", "ours"]
    step = np.float32(2**-24)  # of a float just below 1
    assert [np.float32(line[4]) for line in lines[:5]] == [2.0, 1.0, 1 - step, 1 - 2 * step, 0.5]


def test_trec_evals_order_is_ours(tmp_path: Path) -> None:
    """pytrec_eval, by way of ir_measures, breaks ties by id: no tie is left for it to break."""
    write_ranking(ranking(TIES), tmp_path / "run.txt", "ours")
    for query, documents in TIES.items():
        for place, (wanted, _) in enumerate(documents, 1):
            judged = [ir_measures.Qrel(query, wanted, 1)]
            run = [item for item in ir_measures.read_trec_run(str(tmp_path / "run.txt")) if item.query_id == query]
            result = ir_measures.pytrec_eval.calc_aggregate([ir_measures.RR], judged, run)
            assert result[ir_measures.RR] == pytest.approx(1 / place), (query, wanted)


@given(scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_any_falling_scores_keep_their_order(tmp_path_factory: pytest.TempPathFactory, scores: list[float]) -> None:
    path = tmp_path_factory.mktemp("run") / "run.txt"
    falling = sorted(scores, reverse=True)
    names = [f"d{(i * 7) % len(falling)}-{i}" for i in range(len(falling))]
    write_ranking(ranking({"q": list(zip(names, falling, strict=True))}), path, "t")
    assert order(read_ranking(path)) == {"q": names}


@pytest.mark.parametrize(("ranks", "tied"), [((2, 1), ["a", "b"]), ((1, 2), ["b", "a"]), (("-", "-"), ["a", "b"])])
def test_a_run_of_another_tool_is_ranked_by_score_then_by_its_ranks_then_by_id(
    tmp_path: Path, ranks: tuple[Any, Any], tied: list[str]
) -> None:
    lines = [f"q Q0 b {ranks[0]} 1.5 x", f"q Q0 a {ranks[1]} 1.5 x", "", "q Q0 c 9 2 x", "p\tQ0\tz\t1\t-1e3\tx"]
    (tmp_path / "run.txt").write_text("\n".join(lines))
    table = read_ranking(tmp_path / "run.txt")
    assert order(table) == {"q": ["c", *tied], "p": ["z"]}
    assert table["rank"].to_pylist() == [1, 2, 3, 1]
    assert table.schema.names == RANKING.names


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_run_is_ranked_whole_however_its_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where a query's lines are not together, and scores are the same but in float64."""
    monkeypatch.setattr(trec, "AT_ONCE", at_once)
    lines = ["q Q0 a 1 16777216 x", "p Q0 a 1 1 x", "q Q0 b 2 16777217 x", "p Q0 c 3 3 x", "q Q0 c 3 16777216 x"]
    (tmp_path / "run.txt").write_text("\n".join(lines))
    assert order(read_ranking(tmp_path / "run.txt")) == {"q": ["b", "a", "c"], "p": ["c", "a"]}


@pytest.mark.parametrize("read", [read_ranking, read_qrels])
def test_files_may_be_compressed_and_begin_with_a_mark(tmp_path: Path, read: Any) -> None:
    """The mark of UTF-8 that some editors write is no part of the first query's name."""
    text = {read_ranking: "q Q0 a 1 2 x\np Q0 b 1 1 x\n", read_qrels: "q 0 a 1\np 0 b 1\n"}[read]
    for name, content in {"plain": text.encode(), "marked": text.encode("utf-8-sig")}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            assert read(path)["query_id"].to_pylist() == ["q", "p"]


@pytest.mark.parametrize(
    ("text", "place", "code", "fact"),
    [
        ("q Q0 a 1 2 x\nq Q0 a\n", "run.txt:2", "wrong-columns", "3"),
        ("q Q0 a 1 2 x\n\nq Q0 b 1 two x\n", "run.txt:3", "not-a-number", "'two'"),
        ("q Q0 b 1 nan x\n", "run.txt:1", "not-a-number", "'nan'"),
        ("q Q0 a 1 2 x\nq Q0 a 2 1 x\n", "run.txt", "duplicate", "query q"),
    ],
)
def test_what_is_wrong_with_a_run_is_named_by_its_line(
    tmp_path: Path, text: str, place: str, code: str, fact: str
) -> None:
    (tmp_path / "run.txt").write_text(text)
    with refused(place, code, fact):
        read_ranking(tmp_path / "run.txt")


def test_files_that_are_not_there_or_not_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("q Q0 caf\xe9 1 2 x\n".encode("latin-1"))
    for read in (read_ranking, read_qrels):
        with refused("nowhere.txt", "missing-file"):
            read(tmp_path / "nowhere.txt")
        with refused("latin.txt:1", "not-utf-8"):
            read(tmp_path / "latin.txt")


@pytest.mark.parametrize("read", [read_ranking, read_qrels])
def test_a_pipe_is_read(tmp_path: Path, read: Any) -> None:
    """As a shell makes one of `<(zcat run.gz)`."""
    os.mkfifo(pipe := tmp_path / "pipe")
    text = {read_ranking: "q Q0 a 1 2 x\n", read_qrels: "q 0 a 1\n"}[read]
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert read(pipe)["query_id"].to_pylist() == ["q"]
    writer.join()


def qrels(rows: list[tuple[str, str, int, str]]) -> pa.Table:
    names = ("query_id", "doc_id", "relevance", "split")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=QRELS)


def test_qrels_of_a_split_are_written_and_read(tmp_path: Path) -> None:
    table = qrels([("q1", "a", 1, "test"), ("q2", "b", 0, "test"), ("q3", "c", 2, "dev")])
    write_qrels(table, tmp_path / "qrels.txt", "test")
    assert (tmp_path / "qrels.txt").read_text() == "q1 0 a 1\nq2 0 b 0\n"
    again = read_qrels(tmp_path / "qrels.txt")
    assert again.select(["query_id", "doc_id", "relevance"]).to_pylist() == [
        {"query_id": "q1", "doc_id": "a", "relevance": 1},
        {"query_id": "q2", "doc_id": "b", "relevance": 0},
    ]


def test_qrels_of_beir_are_read(tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t2\n")
    rows: list[dict[str, Any]] = read_qrels(tmp_path / "qrels.tsv").to_pylist()
    assert rows == [{"query_id": "q1", "doc_id": "a", "relevance": 2, "split": ""}]
    (tmp_path / "qrels.tsv").write_text("query_id iteration doc_id relevance\nq1 0 a 2\n")
    assert read_qrels(tmp_path / "qrels.tsv").to_pylist() == rows
    (tmp_path / "qrels.tsv").write_text("q1\ta\tTrue\nq1\tb\t0.0\n")  # without a header
    assert [row["relevance"] for row in read_qrels(tmp_path / "qrels.tsv").to_pylist()] == [1, 0]


@pytest.mark.parametrize(
    ("text", "place", "code", "fact"),
    [
        ("q 0 a O\nq 0 b 1\n", "qrels.txt:1", "not-a-number", "'O'"),
        ("q 0 a 1\nq a\n", "qrels.txt:2", "wrong-columns", "2"),
        ("q 0 a 1\nq 0 b yes\n", "qrels.txt:2", "not-a-number", "'yes'"),
        ("q 0 a 99999999999\n", "qrels.txt:1", "not-a-number", "'99999999999'"),
        (f"q 0 a {'9' * 5000}\n", "qrels.txt:1", "not-a-number", "'" + "9" * 20),
        ("\n", "qrels.txt", "no-rows", "qrels.txt"),
    ],
)
def test_what_is_wrong_with_qrels_is_named_by_its_line(
    tmp_path: Path, text: str, place: str, code: str, fact: str
) -> None:
    (tmp_path / "qrels.txt").write_text(text)
    with refused(place, code, fact):
        read_qrels(tmp_path / "qrels.txt")


def test_an_id_that_a_run_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    """White space parts the columns; what is written must be what is read."""
    spaced = ranking({"q 1": [("a", 1.0)]})
    with refused("run.txt", "white-space", "'q 1'"):
        write_ranking(spaced, tmp_path / "run.txt", "t")
    with refused("qrels.txt", "white-space", "'a b'"):
        write_qrels(qrels([("q", "a b", 1, "test")]), tmp_path / "qrels.txt", "test")
    assert list(tmp_path.iterdir()) == []
