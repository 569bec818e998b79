"""Documents and vectors to send, read in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import DOCUMENTS
from sparring.components.data.vectors import SHARDS
from sparring.components.files import save_array, write_json
from sparring.components.retrieval.quantised import Quantiser
from sparring.components.systems.database import Batch, Source
from sparring.components.systems.database_sources import TableSource
from tests.support.errors import refused

COUNT, WIDTH = 23, 6


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A run's table of documents, in row groups of 5."""
    rows = [{"doc_id": f"d{number}", "title": f"t{number}", "text": f"x {number}"} for number in range(COUNT)]
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=DOCUMENTS), path, row_group_size=5)
    return path


def stored(folder: Path, vectors: np.ndarray) -> Path:
    """A folder of vectors in files of 10."""
    folder.mkdir()
    names = {}
    for start in range(0, len(vectors), 10):
        part = vectors[start : start + 10]
        save_array(folder / f"documents-{start}.npy", part)
        names[f"documents-{start}.npy"] = len(part)
    write_json(folder / SHARDS, names)
    return folder


def joined(source: Source, rows: int) -> Batch:
    """All documents, after a check of the batches' sizes."""
    batches = list(source.batches(rows))
    assert max(len(batch.ids) for batch in batches) <= rows
    columns = ([text for batch in batches for text in batch[number]] for number in range(3))
    return Batch(*columns, {"dense": np.concatenate([batch.vectors["dense"] for batch in batches])})


def test_rows_and_vectors_belong_together(table: Path, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(COUNT, WIDTH)).astype(np.float16)
    source = TableSource(table, {"dense": stored(tmp_path / "vectors", vectors)})
    assert (source.documents, source.widths) == (COUNT, {"dense": WIDTH})
    for rows in (1, 7, 100):
        batch = joined(source, rows)
        assert batch.ids == [f"d{number}" for number in range(COUNT)] == [id for ids in source.ids() for id in ids]
        assert (batch.titles[9], batch.texts[9]) == ("t9", "x 9")
        assert batch.vectors["dense"].dtype == np.float32
        assert np.array_equal(batch.vectors["dense"], vectors.astype(np.float32))


def test_vectors_of_8_bits_have_the_inner_products_of_the_search(table: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 0.1, WIDTH).astype(np.float32)
    codes = rng.integers(-127, 128, (COUNT, WIDTH), np.int8)
    folder = stored(tmp_path / "vectors", codes)
    quantiser = Quantiser(dimensions=WIDTH, vectors="int8", normalize=False, scale=scale.tolist())
    quantiser.save(folder)
    query = rng.normal(size=(1, WIDTH)).astype(np.float32)
    sent = joined(TableSource(table, {"dense": folder}), 7).vectors["dense"]
    np.testing.assert_allclose(sent @ query[0], codes @ quantiser.queries(query)[0], rtol=1e-5)


def test_vectors_of_bits_are_refused(table: Path, tmp_path: Path) -> None:
    folder = stored(tmp_path / "vectors", np.zeros((COUNT, 1), np.uint8))
    Quantiser(dimensions=WIDTH, vectors="binary", normalize=False).save(folder)
    with refused(key="--to", code="no-vectors"):
        TableSource(table, {"dense": folder})
