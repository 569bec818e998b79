"""Schemas of the tables that steps exchange, and functions to read and write them as Parquet files.

Column names follow ir_datasets.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.files import readable, replacing
from sparring.components.timing import timed

TEXT = pa.large_string()
"""Type of ids and texts. An array of Arrow's `string` holds at most 2 GiB: too little for 80 million ids."""

DEV = "dev"
"""Split on which settings are chosen. A collection may have no queries in it."""

AT_ONCE = 5_000_000
"""Number of rows whose ids are in memory at once. It does not change results."""

DOCUMENTS = pa.schema([("doc_id", TEXT), ("title", TEXT), ("text", TEXT)])
"""A document. `title` may be empty. `text` does not repeat it."""

QUERIES = pa.schema([("query_id", TEXT), ("text", TEXT), ("answers", pa.large_list(TEXT)), ("split", TEXT)])
"""A query. `answers` may be empty. `split` is train, dev, test or any other name."""

QRELS = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("relevance", pa.int32()), ("split", TEXT)])
"""A judgement. A relevance above 0 means relevant, unless a measure has a different threshold."""

EXAMPLES = pa.schema(
    [
        ("example_id", TEXT),
        ("first", TEXT),
        ("second", TEXT),
        ("label", TEXT),
        ("score", pa.float64()),
        ("subset", TEXT),
        ("split", TEXT),
    ]
)
"""A sentence or a pair of sentences, with a judgement by people. `label` is a class, and `score` is the similarity of a
pair. The column that does not apply is null. `first` and `second` are document ids. `second` is null for a single
sentence. `subset` is the name of a part, in sets with several parts such as STS12 to STS16, and otherwise empty."""

RANKING = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("rank", pa.int32()), ("score", pa.float32())])
"""A retrieved document. Ranks start at 1, and scores descend.

Documents with equal scores are ordered by the same rule in every retriever, fusion and file. They keep their previous
order: for a ranker the order of its input list, for a run file the order of its ranks. BM25, search and fusion have no
previous order, so documents are sorted by doc_id, by code points. The order depends neither on shards nor on the kind
of retriever. Measures, exports and searches use the same order.
"""

ANSWERED = RANKING.append(pa.field("hit", pa.bool_()))
"""A ranking with answers. `hit` is true if the document contains an answer to the query."""

SCREENED = RANKING.append(pa.field("reason", TEXT))
"""A screened ranking. `reason` says why the document must not become a negative. It is empty if the document may."""

GROUPS = pa.schema(
    [
        ("query_id", TEXT),
        ("visit", pa.int32()),
        ("doc_ids", pa.large_list(TEXT)),
        ("targets", pa.large_list(pa.float32())),
        ("teacher", pa.large_list(pa.float32())),
    ]
)
"""A training example: a query, its candidates, the target of each candidate, and optionally a teacher's score of each.

`visit` is the number of earlier groups of the same query in the same phase. `teacher` is null until a ranker has scored
the group.
"""

OWN = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("left_out", pa.bool_())])
"""A query that is a document itself, and this document. `left_out` is true if rankings leave the document out."""

GIVEN = pa.schema([GROUPS.field(name) for name in ("query_id", "doc_ids", "targets", "teacher")])
"""Candidates of a query from a source of training data: positives, with targets above 0, and negatives that were mined
earlier. `teacher` is null if the source has no scores. A query may have several rows."""

EXPANSIONS = pa.schema([*DOCUMENTS, ("query_id", TEXT), ("number", pa.int32())])
"""An expansion of a query, as a document with the id `query#number`. Numbers start at 1 in the order of generation.
Numbers of duplicates are missing. Number 0, with an empty text, is the query without expansion."""

ANSWER_RANKS = pa.schema([("doc_id", TEXT), ("query_id", TEXT), ("rank", pa.int32())])
"""Rank of the first document with an answer, for the query expanded by `doc_id`. Null if no document has an answer."""


def document_text(title: str, text: str) -> str:
    """Join a document's title and text to the text that models read."""
    return f"{title} {text}".strip()


TRUTHS = {"true": 1, "false": 0}
"""Words that are accepted as relevances, with their values."""


def as_relevance(value: Any) -> int | None:
    """Convert a relevance from a file to an integer. Return None if it is not a relevance.

    `2.0` becomes 2, true becomes 1 and false becomes 0. Numbers and words are both accepted.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TRUTHS:
            return TRUTHS[word]
        return int(word.partition(".")[0]) if re.fullmatch(r"[+-]?[0-9]{1,9}(\.0*)?", word) else None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and abs(value) < 10**9 else None


def check(table: pa.Table, schema: pa.Schema, *, source: str) -> pa.Table:
    """Select the schema's columns of a table, in the schema's order.

    Raise ValueError if a column is missing or has a wrong type. The error names the column and the table's `source`.
    """
    for field in schema:
        if field.name not in table.column_names:
            raise ValueError(
                f"{source}: there is no column {field.name!r}. The columns are {', '.join(table.column_names)}."
            )
        present = table.schema.field(field.name).type
        if present != field.type and not _is_castable(present, field.type):
            raise ValueError(f"{source}: the column {field.name!r} has the type {present}, but must be {field.type}.")
    return table.select(schema.names).cast(schema)


def read(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, filters: list[Any] | None = None
) -> pa.Table:
    """Read a table, or some of its columns and rows. `filters` are pyarrow's. Raise ValueError for a wrong schema."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with timed("files"):
        table = pq.read_table(readable(path), columns=columns and wanted.names, filters=filters)
        return check(table, wanted, source=str(path))


def write(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    """Write a table atomically. Raise ValueError, and write no file, for a wrong schema."""
    with replacing(path) as temporary:
        pq.write_table(check(table, schema, source=path.name), temporary)


def pieces(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, rows: int = 1_000_000
) -> Iterator[pa.Table]:
    """Read a table that may not fit in memory, in pieces of at most `rows` rows.

    If rows contain lists, a piece has about `rows` list elements instead. Raise ValueError for a wrong schema.
    """
    expected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with pq.ParquetFile(readable(path)) as file:
        check(file.schema_arrow.empty_table(), expected, source=str(path))
        elements_per_row = max(1, elements(file.metadata) // max(1, file.metadata.num_rows))
        batches = file.iter_batches(batch_size=max(1, rows // elements_per_row), columns=expected.names)
        while True:
            with timed("files"):
                batch = next(batches, None)
            if batch is None:
                return
            yield check(pa.Table.from_batches([batch]), expected, source=str(path))


def of_queries(path: Path, schema: pa.Schema, queries: pa.Array) -> pa.Table:
    """Read the rows of some queries. The file is read in pieces, so it need not fit in memory."""
    parts = (piece.filter(pc.is_in(piece["query_id"], value_set=queries)) for piece in pieces(path, schema))
    return pa.concat_tables([schema.empty_table(), *parts])


def first(path: Path, schema: pa.Schema, rows: int) -> pa.Table:
    """Read the first rows of a table that may not fit in memory."""
    parts = [schema.empty_table()]
    for piece in pieces(path, schema):
        parts.append(piece)
        if sum(map(len, parts)) >= rows:
            break
    return pa.concat_tables(parts).slice(0, rows)


def by_query(path: Path, schema: pa.Schema, *, rows: int = 1_000_000) -> Iterator[pa.Table]:
    """Read a table in pieces of about `rows` rows, without dividing a query. A query's rows must be adjacent."""
    rest = schema.empty_table()
    for piece in pieces(path, schema, rows=rows):
        rest = pa.concat_tables([rest, piece])
        last = pc.equal(rest["query_id"], rest["query_id"][-1])  # the next piece may continue it
        done, rest = rest.filter(pc.invert(last)), rest.filter(last)
        if len(done):
            yield done
    if len(rest):
        yield rest


def side_by_side(
    paths: Sequence[Path], schema: pa.Schema, queries: pa.Array, *, rows: int = 1_000_000
) -> Iterator[list[pa.Table]]:
    """Read the rows of some queries from several tables in parallel, in blocks of about `rows` rows.

    A query's rows must be adjacent in each table. A block has the rows of its queries from every table. Queries come in
    the order of their first row: the queries of the first table, then those that only the second has, and so on.
    """
    tables, yielded = [Placed(path, schema, queries) for path in paths], np.zeros(len(queries), bool)
    for number, path in enumerate(paths):
        for piece in by_query(path, schema, rows=max(1, rows // len(paths))):
            query_rows = pc.index_in(piece["query_id"], value_set=queries)
            of_queries, places = piece.filter(pc.is_valid(query_rows)), query_rows.drop_null().to_numpy()
            new = ~yielded[places]
            of_queries, places = of_queries.filter(pa.array(new)), np.unique(places[new])
            if len(places):
                yielded[places] = True
                yield (
                    [schema.empty_table()] * number
                    + [of_queries]
                    + [table.rows(places) for table in tables[number + 1 :]]
                )


class Placed:
    """A table from which the rows of a few queries are read at a time.

    Little is read twice if the table has its queries in the order of `queries`, with adjacent rows per query.
    """

    def __init__(self, path: Path, schema: pa.Schema, queries: pa.Array) -> None:
        self._path, self._schema, self._queries = path, schema, queries
        self._spans: list[tuple[int | None, int | None]] = []
        with timed("files"), pq.ParquetFile(path) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            batches = np.split(np.arange(len(ends)), np.flatnonzero(np.diff(ends // AT_ONCE)) + 1) if len(ends) else []
            for batch in batches:  # few lookups, because each lookup hashes all queries
                ids = file.read_row_groups(batch.tolist(), columns=["query_id"])["query_id"].cast(TEXT)
                places, start = pc.index_in(ids, value_set=queries), 0
                for group in batch:
                    span = pc.min_max(places.slice(start, file.metadata.row_group(group).num_rows))
                    self._spans.append((span["min"].as_py(), span["max"].as_py()))
                    start += file.metadata.row_group(group).num_rows

    def rows(self, places: np.ndarray) -> pa.Table:
        """Read the rows of the queries at ascending `places` of `queries`. Row groups without them are skipped."""
        first, last = places[0], places[-1]
        groups = [
            group for group, (low, high) in enumerate(self._spans) if low is not None and low <= last and first <= high
        ]
        with timed("files"), pq.ParquetFile(self._path) as file:
            read = check(file.read_row_groups(groups, columns=self._schema.names), self._schema, source=str(self._path))
        return read.filter(pc.is_in(read["query_id"], value_set=self._queries.take(pa.array(places))))


def row_count(path: Path) -> int:
    """Count the rows of a Parquet table. Only its end is read."""
    return int(pq.read_metadata(readable(path)).num_rows)


def counts(ranking: Path) -> dict[str, int]:
    """Count the queries and the rows of a ranking. The file is read in pieces."""
    with timed("files"), pq.ParquetFile(ranking) as file:
        ranks = (batch["rank"] for batch in file.iter_batches(columns=["rank"]))
        answered = sum(pc.sum(pc.equal(rank, 1)).as_py() or 0 for rank in ranks)
        return {"answered": answered, "rows": file.metadata.num_rows}


def records(path: Path, key: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Read the rows with some ids, by id. Of the file, only the id column and row groups with such an id are read."""
    rows: dict[str, dict[str, Any]] = {}
    sought = pa.array(ids, TEXT)
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            if not pc.any(_has(file.read_row_group(group, columns=[key]), key, sought)).as_py():
                continue
            for batch in file.iter_batches(row_groups=[group]):
                table = pa.Table.from_batches([batch])
                rows |= {row[key]: row for row in table.filter(_has(table, key, sought)).to_pylist()}
    return rows


def _has(table: pa.Table, key: str, wanted: pa.Array) -> pa.ChunkedArray:
    """Mark the rows that have one of the wanted ids."""
    return pc.is_in(table[key].cast(TEXT), value_set=wanted)


def elements(metadata: pq.FileMetaData) -> int:
    """Count the elements of the longest column. If its rows are lists, count the elements in the lists."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = range(metadata.num_columns)
    return max((sum(group.column(column).num_values for group in groups) for column in columns), default=0)


def _is_castable(present: pa.DataType, expected: pa.DataType) -> bool:
    """Return True if a type converts to the expected type, for example a small to a large string, or int64 to int32."""
    if pa.types.is_large_list(expected):
        if pa.types.is_list(present) or pa.types.is_large_list(present):
            return present.value_type == expected.value_type or _is_castable(present.value_type, expected.value_type)
        return pa.types.is_null(present)
    if pa.types.is_large_string(expected):
        return pa.types.is_string(present) or pa.types.is_dictionary(present) or pa.types.is_null(present)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(present)
    return pa.types.is_floating(expected) and (pa.types.is_floating(present) or pa.types.is_integer(present))
