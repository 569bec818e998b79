"""Tables are checked against their schema before a step reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import (
    ANSWERED,
    DOCUMENTS,
    GROUPS,
    QRELS,
    QUERIES,
    RANKING,
    Placed,
    as_relevance,
    by_query,
    check,
    counts,
    document_text,
    elements,
    first,
    of_queries,
    pieces,
    read,
    side_by_side,
    write,
    write_ranking_part,
)


def ranking() -> pa.Table:
    return pa.table({"query_id": ["q"], "doc_id": ["d"], "rank": [1], "score": [0.5]}, schema=RANKING)


def test_a_right_table_is_left_as_it_is() -> None:
    assert check(ranking(), RANKING, source="x").equals(ranking())


def test_columns_come_in_order_and_others_are_left_out() -> None:
    mixed = ranking().select(["score", "doc_id", "rank", "query_id"]).append_column("more", pa.array([1]))
    assert check(mixed, RANKING, source="x").equals(ranking())


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"run: there is no column 'score'. The columns are query_id, doc_id, rank"):
        check(ranking().drop_columns(["score"]), RANKING, source="run")


@pytest.mark.parametrize("values", [pa.array([1]), pa.array([b"x"]), pa.array([["x"]])])
def test_a_column_of_another_kind_is_named(values: pa.Array) -> None:
    with pytest.raises(
        ValueError, match=rf"run: the column 'doc_id' has the type {values.type}, but must be large_string"
    ):
        check(ranking().set_column(1, "doc_id", values), RANKING, source="run")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("doc_id", pa.array(["d"], pa.string())),
        ("doc_id", pa.array(["d"]).dictionary_encode()),
        ("rank", pa.array([1], pa.int64())),
        ("score", pa.array([0.5], pa.float64())),
    ],
)
def test_other_widths_are_taken(column: str, values: pa.Array) -> None:
    place = RANKING.get_field_index(column)
    assert check(ranking().set_column(place, column, values), RANKING, source="x").equals(ranking())


def test_lists_of_other_widths_and_columns_of_nulls_are_taken() -> None:
    table = pa.table(
        {
            "query_id": ["q"],
            "visit": pa.array([0], pa.int64()),
            "doc_ids": pa.array([["d"]], pa.list_(pa.string())),
            "targets": pa.array([[1.0]], pa.list_(pa.float64())),
            "teacher": pa.nulls(1),
        }
    )
    output = check(table, GROUPS, source="groups")
    assert output.schema.equals(GROUPS)
    assert output.to_pylist() == [{"query_id": "q", "visit": 0, "doc_ids": ["d"], "targets": [1.0], "teacher": None}]


def test_fractions_are_no_relevance() -> None:
    table = pa.table({"query_id": ["q"], "doc_id": ["d"], "relevance": [0.5], "split": ["test"]})
    with pytest.raises(ValueError, match="column 'relevance' has the type double, but must be int32"):
        check(table, QRELS, source="qrels")


@pytest.mark.parametrize(
    ("value", "relevance"),
    [
        (2, 2),
        (" -1 ", -1),
        (2.0, 2),
        ("2.0", 2),
        ("1.", 1),
        (True, 1),
        (False, 0),
        ("True", 1),
        ("FALSE", 0),
        (0.5, None),
        ("0.5", None),
        (math.inf, None),
        (math.nan, None),
        (1e10, None),
        (10**9, None),
        ("1e3", None),
        ("yes", None),
        ("", None),
        (None, None),
    ],
)
def test_what_files_have_for_a_relevance(value: Any, relevance: int | None) -> None:
    grade = as_relevance(value)
    assert (grade, type(grade)) == (relevance, type(relevance))


def test_every_table_begins_with_its_ids() -> None:
    assert DOCUMENTS.names[0] == "doc_id"
    assert all(schema.names[0] == "query_id" for schema in (QUERIES, QRELS, RANKING, GROUPS))


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_pieces_never_cut_a_query(tmp_path: Path, rows: int) -> None:
    queries = ["a", "b", "b", "b", "b", "c", "d", "d"]
    columns = {"query_id": queries, "doc_id": queries, "rank": [1] * 8, "score": [float(number) for number in range(8)]}
    whole = pa.table(columns, schema=RANKING)
    write(tmp_path / "ranking.parquet", whole, RANKING)
    tables = list(by_query(tmp_path / "ranking.parquet", RANKING, rows=rows))
    assert pa.concat_tables(tables) == whole
    seen = [query for piece in tables for query in set(piece["query_id"].to_pylist())]
    assert sorted(seen) == ["a", "b", "c", "d"]
    assert pa.concat_tables(pieces(tmp_path / "ranking.parquet", RANKING, rows=rows)) == whole
    with pytest.raises(ValueError, match="no column 'hit'"):
        next(pieces(tmp_path / "ranking.parquet", ANSWERED))


def test_pieces_of_lists_are_counted_by_what_is_in_them(tmp_path: Path) -> None:
    rows = [{"query_id": f"q{number}", "visit": 0, "doc_ids": ["d"] * 10, "targets": [0.0] * 10} for number in range(9)]
    whole = pa.Table.from_pylist(rows, schema=GROUPS)
    write(tmp_path / "groups.parquet", whole, GROUPS)
    parts = list(pieces(tmp_path / "groups.parquet", GROUPS, rows=40))
    assert [len(piece) for piece in parts] == [4, 4, 1]
    assert pa.concat_tables(parts) == whole
    assert [len(piece) for piece in pieces(tmp_path / "groups.parquet", GROUPS, columns=["doc_ids"], rows=3)] == [1] * 9
    for rows_wanted in (0, 5, 9, 20):
        assert first(tmp_path / "groups.parquet", GROUPS, rows_wanted) == whole.slice(0, rows_wanted)


def test_the_rows_of_some_queries(tmp_path: Path) -> None:
    queries = ["a", "b", "b", "c", "a"]
    columns = {"query_id": queries, "doc_id": queries, "rank": [1] * 5, "score": [float(number) for number in range(5)]}
    write(tmp_path / "ranking.parquet", pa.table(columns, schema=RANKING), RANKING)
    table = of_queries(tmp_path / "ranking.parquet", RANKING, pa.array(["a", "x", "c"]))
    assert table["score"].to_pylist() == [0.0, 3.0, 4.0]
    assert not len(of_queries(tmp_path / "ranking.parquet", RANKING, pa.array([], pa.string())))


@pytest.mark.parametrize("rows", [1, 4, 7, 1_000])
@pytest.mark.parametrize("group", [1, 3, 100])
def test_tables_side_by_side_have_a_query_in_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, group: int
) -> None:
    """Each has its queries in another order, and lacks some; one has some that nobody asks for."""
    monkeypatch.setattr("sparring.components.data.tables.AT_ONCE", 4)
    draw, names = np.random.default_rng(rows), [f"q{number}" for number in range(12)]
    wholes, paths = [], []
    for number in range(3):
        queries = np.repeat(draw.permutation(names)[:9], draw.integers(1, 4, 9)).tolist()
        columns = {
            "query_id": queries,
            "doc_id": queries,
            "rank": [1] * len(queries),
            "score": draw.random(len(queries)),
        }
        wholes.append(pa.table(columns, schema=RANKING))
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(wholes[-1], paths[-1], row_group_size=group)
    query_ids = pa.array(names[:10], pa.large_string())
    blocks = list(side_by_side(paths, RANKING, query_ids, rows=rows))
    order = [
        query
        for block in blocks
        for query in dict.fromkeys(q for table in block for q in table["query_id"].to_pylist())
    ]
    first = dict.fromkeys(query for whole in wholes for query in whole["query_id"].to_pylist())
    assert order == [query for query in first if query in names[:10]]
    place = {query: number for number, query in enumerate(order)}
    for number, whole in enumerate(wholes):
        records = pa.concat_tables([block[number] for block in blocks]).to_pylist()
        wanted = [row for row in whole.to_pylist() if row["query_id"] in names[:10]]
        mine, expected = (sorted(rows, key=lambda row: place[row["query_id"]]) for rows in (records, wanted))
        assert mine == expected
    seen = [query for block in blocks for query in {q for table in block for q in table["query_id"].to_pylist()}]
    assert len(seen) == len(order)


def test_a_document_reads_as_title_and_text() -> None:
    assert document_text("Title", "Text.") == "Title Text."
    assert document_text("", "Text.") == "Text."
    assert document_text("Title", "") == "Title"


@pytest.mark.parametrize("rows", [3, 10, 1000])
def test_a_table_in_parts_reads_as_one(tmp_path: Path, rows: int) -> None:
    """Also if parts begin within a query's rows, or are empty."""
    names = [f"q{number}" for number in range(9) for _ in range(4)]
    ranks = [rank for _ in range(9) for rank in range(1, 5)]
    columns = [names, [f"d{number}" for number in range(36)], ranks, np.linspace(2, 1, 36, dtype=np.float32)]
    table = pa.table(columns, schema=RANKING)
    pq.write_table(table, tmp_path / "one.parquet")
    for number, (start, stop) in enumerate([(0, 6), (6, 6), (6, 21), (21, 36)]):
        write_ranking_part(
            tmp_path / "many.parquet" / f"{number:08d}.parquet", [table.slice(start, stop - start)], RANKING
        )
    (tmp_path / "many.parquet" / ".00000009.parquet.0123abcd").write_text("a part that a killed worker left")
    single, many = tmp_path / "one.parquet", tmp_path / "many.parquet"
    assert read(many, RANKING).equals(table)
    for path in (single, many):
        read_in_pieces = list(pieces(path, RANKING, rows=rows))
        assert pa.concat_tables(read_in_pieces).equals(table)
        assert max(map(len, read_in_pieces)) <= max(rows, 1)
        by_queries = list(by_query(path, RANKING, rows=rows))
        assert pa.concat_tables(by_queries).equals(table)
        assert sum(len(piece["query_id"].unique()) for piece in by_queries) == 9
        queries = pa.array(["q7", "q2", "q5"], pa.large_string())
        wanted = table.filter(pc.is_in(table["query_id"], value_set=queries))
        assert Placed(path, RANKING, queries).rows(np.arange(3)).equals(wanted)
    assert counts(many) == {"answered": 9, "rows": 36}
    assert elements(many) == elements(single) == 36
    for part in many.glob("*.parquet"):
        part.unlink()
    with pytest.raises(FileNotFoundError, match=r"many\.parquet"):
        next(pieces(many, RANKING))
