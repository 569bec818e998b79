"""Queries that are documents themselves: which document is whose, and rankings without it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.own_documents import FILE, LeftOut, carry, find, never_negatives, remark
from sparring.components.data.tables import QRELS, RANKING
from tests.support import toy

BODIES = ["red owl in a castle", "blue heron by the river", "green kettle on a stove", "white dog in the snow"]


def found(
    queries: list[tuple[str, str]],
    documents: list[tuple[str, str, str]],
    *relevant: tuple[str, str],
    decision: Any = None,
) -> set[tuple[str, str]]:
    """The pairs of queries and their own documents."""
    pairs = find(lambda: queries, documents, lambda: relevant, decision)
    return {(pair.query_id, pair.doc_id) for pair in pairs}


NUMBERED = [(str(n), "", text) for n, text in enumerate(BODIES)]
NAMED = [(f"{n}-pro", "", text) for n, text in enumerate(BODIES)]
ITSELF = {(f"{n}-pro", f"{n}-pro") for n in range(4)}


def test_ids_and_texts_are_the_same() -> None:
    """As in ArguAna and Quora. White space and letter case do not count, and a title may come before the text."""
    assert found([(name, text) for name, _, text in NAMED], NAMED) == ITSELF
    assert found([(name, text.upper() + "\n") for name, _, text in NAMED], NAMED) == ITSELF
    titled = [(name, "about", text) for name, _, text in NAMED]
    assert found([(name, text) for name, _, text in NAMED], titled) == ITSELF
    assert found([(name, f"about  {text}") for name, _, text in NAMED], titled) == ITSELF


def test_the_query_is_a_title() -> None:
    """As in item-to-item search by titles; but not where the document with this title is the judged answer."""
    titled = [(str(n), text, "a longer text") for n, text in enumerate(BODIES)]
    queries = [(str(n), text) for n, text in enumerate(BODIES)]
    assert found(queries, titled) == {(str(n), str(n)) for n in range(4)}
    judged = [(str(n), str(n)) for n in range(4)]
    assert found(queries, titled, *judged) == set()
    assert found(queries, titled, *judged, decision="leave out") == set()


def test_texts_are_the_same_under_other_ids() -> None:
    queries = [(f"q{n}", text) for n, text in enumerate(BODIES)]
    assert found(queries, NAMED) == {(f"q{n}", f"{n}-pro") for n in range(4)}
    assert found(queries, [(f"{n}", text, "other") for n, text in enumerate(BODIES)]) == set()  # an entity's name


def test_numbers_on_both_sides_that_name_other_things() -> None:
    """Query 0 has the text of document 3: then equal numbers mean nothing, although somebody has decided."""
    queries = [(str(n), BODIES[3 - n]) for n in range(4)]
    wanted = {(str(n), str(3 - n)) for n in range(4)}
    assert found(queries, NUMBERED) == wanted
    assert found(queries, NUMBERED, decision="leave out") == wanted
    assert found(queries, NUMBERED, *wanted, decision="leave out") == set()  # their texts are what is looked for


def test_equal_ids_with_other_texts() -> None:
    """Running numbers are equal by chance; other ids are not. A decision to leave out counts for both (BEIR)."""
    numbered, named = ([(row[0], f"who wants {row[0]}?") for row in collection] for collection in (NUMBERED, NAMED))
    assert found(numbered, NUMBERED) == set()
    assert found(numbered, NUMBERED, decision="leave out") == {(str(n), str(n)) for n in range(4)}
    assert found([*numbered[1:], ("0", BODIES[0])], NUMBERED) == {("0", "0")}
    assert found(named, NAMED) == ITSELF
    judged = [(name, name) for name, _ in named]  # each row a question with its answer, under one id
    assert found(named, NAMED, *judged) == found(named, NAMED, *judged, decision="leave out") == set()


def test_a_copy_that_is_judged_relevant_is_a_result() -> None:
    documents = [*NAMED, ("copy", "", BODIES[0]), ("other copy", "", BODIES[0])]
    queries = [(name, text) for name, _, text in NAMED]
    assert found(queries, documents, decision="leave out") == ITSELF
    copies = {("0-pro", "copy"), ("0-pro", "other copy")}
    assert found(queries, documents, decision="leave out with copies") == ITSELF | copies
    kept = found(queries, documents, ("0-pro", "copy"), decision="leave out with copies")
    assert kept == ITSELF | {("0-pro", "other copy")}
    repeats = [("q", BODIES[0])]
    assert found(repeats, documents[1:]) == {("q", "copy"), ("q", "other copy")}
    assert found(repeats, documents[1:], ("q", "copy")) == set()


def test_a_query_that_is_judged_relevant_to_itself() -> None:
    pairs = find(lambda: [("0-pro", BODIES[0])], NAMED, lambda: [("0-pro", "0-pro")], "leave out")
    assert [(pair.query_id, pair.doc_id, pair.judged) for pair in pairs] == [("0-pro", "0-pro", True)]


def test_one_in_a_thousand_is_told() -> None:
    pairs = find(lambda: [(NAMED[0][0], NAMED[0][2])], NAMED, list, None)
    assert remark(pairs, 1000).startswith("1 of 1,000 queries are documents of the collection themselves, such as '0-")
    assert remark(pairs, 1001) == remark([], 0) == ""


def test_no_query_loses_a_place(tmp_path: Path) -> None:
    """Whatever is found and left out: the ranking is the longer one without these documents, cut to k."""
    draw = random.Random(3)
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        queries, documents = [f"q{n}" for n in range(draw.randint(0, 6))], [f"d{n}" for n in range(12)]
        pairs = [(query, document) for query in queries for document in documents if draw.random() < 0.2]
        toy.with_own(folder, folder, pairs)
        left_out, k = LeftOut(folder), draw.randint(1, 6)
        assert left_out.most == max([sum(name == query for name, _ in pairs) for query in queries], default=0)
        lists = {query: draw.sample(documents, min(12, k + left_out.most)) for query in queries}
        ranking = toy.write_ranking(folder / "ranking", lists)
        table = left_out(pq.read_table(ranking / "ranking.parquet", schema=RANKING), k)
        for query in queries:
            rows = [row for row in table.to_pylist() if row["query_id"] == query]
            assert [row["doc_id"] for row in rows] == [
                document for document in lists[query] if (query, document) not in pairs
            ][:k]
            assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("present", [True, False])
def test_nothing_is_left_out_where_nobody_has_decided(tmp_path: Path, present: bool) -> None:
    if present:
        toy.with_own(tmp_path, tmp_path, [("q0", "d0")], left_out=False)
    ranking = toy.write_ranking(tmp_path / "ranking", {"q0": ["d0", "d1", "d2"]})
    table = LeftOut(tmp_path)(pq.read_table(ranking / "ranking.parquet"), 2)
    assert LeftOut(tmp_path).most == 0
    assert table["doc_id"].to_pylist() == ["d0", "d1"]


def test_expansions_of_a_query_have_its_own_document(tmp_path: Path) -> None:
    toy.with_own(tmp_path, tmp_path, [("q0", "d0"), ("q1", "d1")])
    (tmp_path / "to").mkdir()
    expansions = [("q0#1", "q0"), ("q0#2", "q0"), ("q2#1", "q2")]
    schema = pa.schema([(name, pa.large_string()) for name in ("doc_id", "query_id")])
    carry(
        tmp_path, tmp_path / "to", pa.table([list(column) for column in zip(*expansions, strict=True)], schema=schema)
    )
    pairs = [(row["query_id"], row["doc_id"]) for row in pq.read_table(tmp_path / "to" / FILE).to_pylist()]
    assert pairs == [("q0#1", "d0"), ("q0#2", "d0")]


def test_a_querys_own_document_is_never_its_negative(tmp_path: Path) -> None:
    """Whether rankings have it or not, and with a judgement or without."""
    data = toy.write_data(tmp_path / "data")
    pq.write_table(
        pa.Table.from_pylist([{"query_id": "q0", "doc_id": "d3", "relevance": 1, "split": "test"}], schema=QRELS),
        data / "qrels.parquet",
    )
    toy.with_own(tmp_path / "own", data, [("q0", "d7"), ("q1", "d8")], left_out=False)
    np.save(tmp_path / "queries.same.npy", np.arange(24))
    exclusions = {query: documents.tolist() for query, documents in never_negatives(tmp_path / "own", tmp_path).items()}
    assert exclusions == {0: [3, 7], 1: [8]}
