"""LanceDB in a folder: `lancedb:///FOLDER`, or `lancedb:////FOLDER` for an absolute path.

Without a vector index the query is compared with all rows, so the ranking is exact. Words have LanceDB's own full-text
index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sparring.components.systems.database import Address, Batch, Layout, VectorDatabase

ABOUT = b"sparring"
"""Key of the description in the table's schema."""
KINDS = {"id": pa.string(), "title": pa.large_string(), "text": pa.large_string(), "digest": pa.string()}
"""Types of the columns. LanceDB indexes no large strings as ids."""
CONTENTS = "contents"
"""Column of title and text together, which the full-text index covers."""
LANGUAGES = (
    "arabic danish dutch english finnish french german greek hungarian italian norwegian portuguese romanian russian "
    "spanish swedish tamil turkish"
)
PROGRAM = """
import lancedb
table = lancedb.connect(url.removeprefix("lancedb:///")).open_table("TABLE")
def nearest(column, vector, k):
    # The distance `dot` is 1 minus the inner product.
    near = table.search(vector, vector_column_name=column).distance_type("dot").limit(k).to_list()
    return [(row["id"], row["title"], row["text"], 1 - row["_distance"]) for row in near]
"""
PROGRAM_WORDS = """
def words(query, k):
    near = table.search(query, query_type="fts", fts_columns="contents").limit(k).to_list()
    return [(row["id"], row["title"], row["text"], row["_score"]) for row in near]
"""


class LanceDB(VectorDatabase):
    """A table with a list of fp32 numbers for each vector."""

    packages = {"lancedb": "lancedb"}
    rows = 10_000
    full_text = "LanceDB's BM25"
    program = PROGRAM
    program_words = PROGRAM_WORDS
    languages = {language: language.title() for language in LANGUAGES.split()}

    @classmethod
    def place(cls, address: Address) -> str:
        """Return the URL with an absolute path."""
        return address.absolute

    def __init__(self, address: Address, layout: Layout) -> None:
        import lancedb

        super().__init__(address, layout)
        self._database = lancedb.connect(str(address.file))
        self._table: Any = None

    @staticmethod
    def failures() -> tuple[type[Exception], ...]:
        """Return LanceDB's exceptions, which are Python's."""
        return (OSError, RuntimeError, ValueError)

    def prepare(self) -> None:
        """Open the table, or create it."""
        try:
            self._table = self._database.open_table(self.layout.table)
        except ValueError as error:
            if "not found" not in str(error):
                raise
            self._create()
            return
        stored = (self._table.schema.metadata or {}).get(ABOUT)
        self.check_description(None if stored is None else stored.decode())

    def _create(self) -> None:
        fields = [pa.field(name, kind) for name, kind in KINDS.items()]
        fields += [pa.field(name, pa.list_(pa.float32(), width)) for name, width in self.layout.vectors.items()]
        fields += [pa.field(CONTENTS, pa.large_string())] if self.layout.lexical is not None else []
        schema = pa.schema(fields, metadata={ABOUT: self.layout.description.encode()})
        self._table = self._database.create_table(self.layout.table, schema=schema)

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Look up rows by id."""
        table = self._table.search().where(_among(ids)).select(["id", "digest"]).limit(len(ids)).to_arrow()
        return dict(zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True))

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert or replace rows, as one version of the table."""
        texts = [batch.ids, batch.titles, batch.texts, digests]
        columns = [pa.array(column, kind) for column, kind in zip(texts, KINDS.values(), strict=True)]
        for name, width in self.layout.vectors.items():
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(batch.vectors[name].ravel()), width))
        if self.layout.lexical is not None:
            pairs = zip(batch.titles, batch.texts, strict=True)
            columns.append(pa.array([f"{title} {text}".strip() for title, text in pairs], pa.large_string()))
        rows = pa.Table.from_arrays(columns, schema=self._table.schema)
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def count(self) -> int:
        """Count the rows."""
        return int(self._table.count_rows())

    def ids(self) -> Iterator[list[str]]:
        """List ids as the table was at first."""
        listed = self._table.search().select(["id"]).limit(max(1, self.count()))
        for batch in listed.to_batches(self.rows):
            yield batch["id"].to_pylist()

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows by id."""
        self._table.delete(_among(ids))

    def finish(self) -> None:
        """Index ids and words, and join small files. Versions older than a week are removed."""
        from lancedb.index import FTS, BTree

        indexed = {column for index in self._table.list_indices() for column in index.columns}
        if "id" not in indexed:
            self._table.create_index("id", config=BTree())
        if self.layout.lexical is not None and CONTENTS not in indexed:
            language = self.language(self.layout)
            options = {"language": language} if language else {"stem": False, "remove_stop_words": False}
            self._table.create_index(CONTENTS, config=FTS(**options))
        self._table.optimize()


def _among(ids: Sequence[str]) -> str:
    """Write a condition that a row has one of the ids."""
    quoted = ", ".join("'" + id.replace("'", "''") + "'" for id in ids)
    return f"id IN ({quoted})"


Database = LanceDB
