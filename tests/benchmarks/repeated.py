"""A larger collection out of a small one: its documents again and again, under new ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data.tables import DOCUMENTS
from sparring.workflows.steps.ingest import ROWS


def repeated(source: Path, place: Path, count: int, *, characters: int | None = None) -> Path:
    """A data artifact of so many documents, perhaps with the beginnings of their texts alone, and the same queries."""
    place.mkdir()
    (place / "queries.parquet").symlink_to(source / "queries.parquet")
    table = pq.read_table(source / "documents.parquet")
    if characters is not None:
        table = table.set_column(2, "text", pc.utf8_slice_codeunits(table["text"], 0, characters))
    with pq.ParquetWriter(place / "documents.parquet", DOCUMENTS, compression="zstd") as file:
        for start in range(0, count, len(table)):
            part = table.slice(0, count - start)
            ids = pa.array([f"{start + row:08d}" for row in range(len(part))])
            file.write_table(part.set_column(0, "doc_id", ids).cast(DOCUMENTS), row_group_size=ROWS)
    return place
