"""Groups read as rows of a collection, and the positives of its queries."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.data import groups as module
from sparring.components.data.groups import (
    Groups,
    IdOrder,
    document_rows,
    ids_of,
    known_positives,
    measured_queries,
    positives,
    rows_of,
    write_lists,
)
from sparring.components.data.tables import DOCUMENTS, GROUPS, MINED
from tests.support import toy

ROWS = [
    {"query_id": "q5", "doc_ids": ["d5", "d39", "d0"], "targets": [1.0, 0.25, 0.0], "teacher": [1.0, 2.0, 3.0]},
    {"query_id": "q0", "doc_ids": ["d9"], "targets": [1.0], "teacher": [4.0]},
    {"query_id": "q5", "doc_ids": ["d7", "d5"], "targets": [0.0, 1.0], "teacher": [5.0, 6.0]},
]


def test_groups_are_read_by_rows(tmp_path: Path, data: Path) -> None:
    groups = Groups(toy.write_groups(tmp_path / "groups", ROWS) / "groups.parquet", data)
    assert len(groups) == 3
    first_groups = [groups[i] for i in range(3)]
    assert [group.query for group in first_groups] == [5, 0, 5]
    assert [group.documents.tolist() for group in first_groups] == [[5, 39, 0], [9], [7, 5]]
    assert [group.targets.tolist() for group in first_groups] == [[1, 0.25, 0], [1], [0, 1]]
    assert [group.teacher.tolist() for group in first_groups if group.teacher is not None] == [[1, 2, 3], [4], [5, 6]]


def test_groups_in_several_row_groups_and_chunks(tmp_path: Path, data: Path) -> None:
    rows = [{"visit": 0, **row} for row in ROWS] * 5
    pq.write_table(pa.Table.from_pylist(rows, schema=GROUPS), tmp_path / "groups.parquet", row_group_size=4)
    groups = Groups(tmp_path / "groups.parquet", data)
    assert [groups[i].documents.tolist() for i in range(15)] == [[5, 39, 0], [9], [7, 5]] * 5


def test_groups_written_again_with_other_numbers(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANDIDATES", 4)
    place = toy.write_groups(tmp_path / "groups", [{**row, "teacher": None} for row in ROWS]) / "groups.parquet"
    write_lists(place, "teacher", np.arange(6, dtype=np.float32), tmp_path / "taught.parquet")
    before, after = Groups(place, data), Groups(tmp_path / "taught.parquet", data)
    assert before.teacher is None
    assert [group.teacher.tolist() for group in (after[i] for i in range(3)) if group.teacher is not None] == [
        [0, 1, 2],
        [3],
        [4, 5],
    ]
    for name in ("queries", "offsets", "documents", "targets"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


def test_without_a_teacher_in_every_row_there_is_none(tmp_path: Path, data: Path) -> None:
    for name, rows in (
        ("none", [{**row, "teacher": None} for row in ROWS]),
        ("some", [{**row, "teacher": None} if i == 1 else row for i, row in enumerate(ROWS)]),
    ):
        groups = Groups(toy.write_groups(tmp_path / name, rows) / "groups.parquet", data)
        assert groups[0].teacher is None
        assert groups[2].documents.tolist() == [7, 5]


@pytest.mark.parametrize(
    ("row", "missing"),
    [({"query_id": "q99", "doc_ids": ["d1"]}, "q99"), ({"query_id": "q1", "doc_ids": ["d1", "x"]}, "x")],
)
def test_an_id_that_is_not_in_the_collection_is_named_with_the_file(
    tmp_path: Path, data: Path, row: dict[str, object], missing: str
) -> None:
    place = toy.write_groups(tmp_path / "groups", [row]) / "groups.parquet"
    with pytest.raises(ValueError, match=rf"groups\.parquet: the id {missing} is not in the collection"):
        Groups(place, data)


def test_rows_of_ids_in_chunks() -> None:
    among = pa.array(["a", "b", "c"])
    assert rows_of(pa.array(["c", "a", "c"]), among, source="x").tolist() == [2, 0, 2]
    chunked = rows_of(pa.chunked_array([["c"], ["b", "a"]]), among, source="x")
    assert chunked.tolist() == [2, 1, 0]
    assert chunked.dtype == np.int64
    assert rows_of(pa.array([], pa.string()), among, source="x").tolist() == []


def test_positives_are_what_was_judged_above_zero(data: Path) -> None:
    relevant = positives(data)
    assert ids_of(data / "queries.parquet", "query_id").to_pylist() == [f"q{i}" for i in range(24)]
    assert {query: sorted(rows.tolist()) for query, rows in relevant.items()} == {
        i: sorted([i, i + 9]) if i % 3 == 0 else [i] for i in range(24)
    }


def test_what_answers_a_query_answers_those_that_ask_the_same(tmp_path: Path, data: Path) -> None:
    """q2 and q8 ask what q0 asks; nothing is judged for q8."""
    qrels = pq.read_table(data / "qrels.parquet")
    pq.write_table(qrels.filter(pc.not_equal(qrels["query_id"], "q8")), tmp_path / "qrels.parquet")
    for name in ("queries", "documents"):
        shutil.copyfile(data / f"{name}.parquet", tmp_path / f"{name}.parquet")
    same = np.arange(24)
    same[[2, 8]] = 0
    np.save(tmp_path / "queries.same.npy", same)
    relevant = known_positives(tmp_path, tmp_path)
    assert [relevant[query].tolist() for query in (0, 2, 8)] == [[0, 2, 9]] * 3
    assert relevant[1].tolist() == [1]
    assert 8 not in positives(tmp_path)


def test_a_sample_is_of_queries_that_can_be_measured(tmp_path: Path, data: Path) -> None:
    """Those with a relevant document; of a split of questions alone, those with an answer."""
    table = pq.read_table(data / "queries.parquet")
    test = [row["query_id"] for row in table.to_pylist() if row["split"] == "test"]
    assert measured_queries(data, "test", None) == test
    judged = measured_queries(data, "test", 3)
    assert len(judged) == 3
    assert set(judged) <= set(test)
    answers = [["a word"] if row["query_id"] in test[:2] else [] for row in table.to_pylist()]
    column = table.schema.get_field_index("answers")
    pq.write_table(
        table.set_column(column, table.schema.field(column), pa.array(answers, table.schema.field(column).type)),
        tmp_path / "queries.parquet",
    )
    pq.write_table(pq.read_table(data / "qrels.parquet").slice(0, 0), tmp_path / "qrels.parquet")
    assert measured_queries(tmp_path, "test", 3) == test[:2]


@pytest.fixture
def unordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A collection whose ids are in no order, read in pieces of 7."""
    monkeypatch.setattr(module, "AT_ONCE", 7)
    ids = ["ä", "", *(f"d{number}" for number in np.random.default_rng(0).permutation(30)), "z\u2028", "😀"]
    table = pa.table([ids, [""] * len(ids), ["text"] * len(ids)], schema=DOCUMENTS)
    pq.write_table(table, tmp_path / "documents.parquet", row_group_size=5)
    return tmp_path, ids


def test_documents_are_looked_up_without_all_ids(unordered: tuple[Path, list[str]]) -> None:
    data, ids = unordered
    sought = [33, 0, 20, 0, 1, 8]
    rows = document_rows(pa.array([ids[row] for row in sought], pa.large_string()), data, source="x")
    assert rows.tolist() == sought
    with pytest.raises(ValueError, match="x: the id d30 is not in the collection"):
        document_rows(pa.array(["d1", "d30"], pa.large_string()), data, source="x")


def test_mapped_ids_are_those_of_the_collection_and_in_the_order_of_code_points(
    unordered: tuple[Path, list[str]], tmp_path: Path
) -> None:
    data, ids = unordered
    for _ in range(2):  # written, and opened again
        order = IdOrder(data, tmp_path / ".order")
        assert order.ids.to_pylist() == ids
        assert [ids[row] for row in order.rows] == sorted(ids)
        assert order.places[order.rows].tolist() == list(range(len(ids)))
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".order", ".order.lock"]


def test_groups_with_rows_need_no_ids_of_documents(tmp_path: Path, data: Path) -> None:
    """Also when they are in parts, and after another column has changed."""
    rows = [{"visit": 0, **row, "doc_rows": [int(name[1:]) for name in row["doc_ids"]]} for row in ROWS]
    (tmp_path / "groups.parquet").mkdir()
    for number, row in enumerate(rows):
        pq.write_table(pa.Table.from_pylist([row], schema=MINED), tmp_path / "groups.parquet" / f"{number}.parquet")
    (tmp_path / "data").mkdir()
    shutil.copy(data / "queries.parquet", tmp_path / "data")
    for path in (tmp_path / "groups.parquet", tmp_path / "taught.parquet"):
        groups = Groups(path, tmp_path / "data")
        assert [groups[i].documents.tolist() for i in range(3)] == [[5, 39, 0], [9], [7, 5]]
        assert [groups[i].query for i in range(3)] == [5, 0, 5]
        if not (tmp_path / "taught.parquet").exists():
            write_lists(path, "teacher", np.arange(6, dtype=np.float32), tmp_path / "taught.parquet")
