"""Tables with more text than the 2 GiB that an array of Arrow's `string` holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.data.groups import Groups, ids_of, rows_of, write_lists
from sparring.components.data.tables import DOCUMENTS, GROUPS, QUERIES

pytestmark = pytest.mark.slow
LIMIT = 2**31
LONG = 2_000
"""Characters of an id: a few rows of such ids are as large as a hundred times as many of common ones."""


def names(start: int, stop: int) -> pa.Array:
    """The ids of documents from one number up to another."""
    numbers = pc.utf8_lpad(pa.array(np.arange(start, stop)).cast(pa.large_string()), LONG, "x")
    return pc.cast(numbers, pa.large_string())


def write_documents(folder: Path, count: int) -> None:
    """A collection of so many documents with long ids, and one query."""
    with pq.ParquetWriter(folder / "documents.parquet", DOCUMENTS, compression="zstd") as writer:
        for start in range(0, count, 50_000):
            ids = names(start, min(start + 50_000, count))
            nothing = pa.repeat(pa.scalar("", pa.large_string()), len(ids))
            writer.write_table(pa.table([ids, nothing, nothing], schema=DOCUMENTS))
    query = {"query_id": "q", "text": "a", "answers": [], "split": "train"}
    pq.write_table(pa.Table.from_pylist([query], schema=QUERIES), folder / "queries.parquet")


def test_ids_of_more_than_2_gib(tmp_path: Path) -> None:
    count = LIMIT // LONG + 10_000
    write_documents(tmp_path, count)
    ids = ids_of(tmp_path / "documents.parquet", "doc_id")
    assert len(ids) == count
    sought = np.array([count - 1, 0, LIMIT // LONG + 1])
    assert rows_of(ids.take(pa.array(sought)), ids, source="x").tolist() == sought.tolist()


def test_groups_with_more_than_2_gib_of_ids(tmp_path: Path) -> None:
    """A thousand candidates a group; read, and written again with other targets."""
    write_documents(tmp_path, 3)
    ids, many = ids_of(tmp_path / "documents.parquet", "doc_id"), 1_000
    count = LIMIT // (LONG * many) + 20
    rng = np.random.default_rng(0)
    documents = rng.integers(0, 3, (count, many))
    with pq.ParquetWriter(tmp_path / "groups.parquet", GROUPS) as writer:
        for start in range(0, count, 50):
            part = documents[start : start + 50]
            offsets = pa.array(np.arange(len(part) + 1) * many)
            columns = {
                "query_id": ["q"] * len(part),
                "visit": [0] * len(part),
                "doc_ids": pa.LargeListArray.from_arrays(offsets, ids.take(pa.array(part.ravel()))),
                "targets": pa.LargeListArray.from_arrays(offsets, pa.array(np.zeros(part.size, np.float32))),
                "teacher": pa.nulls(len(part), GROUPS.field("teacher").type),
            }
            writer.write_table(pa.table(columns, schema=GROUPS))
    (tmp_path / "new").mkdir()
    targets = rng.random(documents.size, np.float32)
    write_lists(tmp_path / "groups.parquet", "targets", targets, tmp_path / "new" / "groups.parquet")
    for folder, wanted in ((tmp_path, np.zeros_like(targets)), (tmp_path / "new", targets)):
        groups = Groups(folder / "groups.parquet", tmp_path)
        np.testing.assert_array_equal(groups.documents, documents.ravel())
        np.testing.assert_array_equal(groups.targets, wanted)
        assert groups.offsets.tolist() == (np.arange(count + 1) * many).tolist()
