"""Schemas of the tables that steps exchange, and functions to read and write them as Parquet files.

Column names follow ir_datasets.
"""

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components import files
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

RANKED = RANKING.append(pa.field("doc_row", pa.int64()))
"""A ranking that also has each document's row in the collection. Whoever reads it needs no lookup of ids."""

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

MINED = GROUPS.append(pa.field("doc_rows", pa.large_list(pa.int64())))
"""Groups that also have each candidate's row in the collection. Whoever reads them needs no lookup of ids."""

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


def parts(path: Path) -> list[Path]:
    """List the files of a table, in order.

    A table is one Parquet file, or a directory of them: workers write a large table in parts, each on its own. An
    empty directory counts as a file that is missing.
    """
    if (elsewhere := files.parts_elsewhere(path)) is not None:
        return elsewhere
    present = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not present:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return present


def columns_of(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    return [str(name) for name in pq.read_schema(readable(parts(path)[0])).names]


def rows_in(path: Path) -> int:
    """Count the rows of a table."""
    return sum(int(pq.read_metadata(readable(part)).num_rows) for part in parts(path))


def read(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, filters: list[Any] | None = None
) -> pa.Table:
    """Read a table, or some of its columns and rows. `filters` are pyarrow's. Raise ValueError for a wrong schema."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with timed("files"):
        tables = [
            check(
                pq.read_table(readable(part), columns=columns and wanted.names, filters=filters),
                wanted,
                source=str(part),
            )
            for part in parts(path)
        ]
        return pa.concat_tables([wanted.empty_table(), *tables])


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
    waiting: list[pa.Table] = []
    for part in parts(path):
        with pq.ParquetFile(readable(part)) as file:
            check(file.schema_arrow.empty_table(), expected, source=str(part))
            most = max(1, rows // max(1, _elements(file.metadata) // max(1, file.metadata.num_rows)))
            batches = file.iter_batches(batch_size=most, columns=expected.names)
            while True:
                with timed("files"):
                    batch = next(batches, None)
                if batch is None:
                    break
                if waiting and sum(map(len, waiting)) + len(batch) > most:
                    yield pa.concat_tables(waiting)
                    waiting = []
                waiting.append(check(pa.Table.from_batches([batch]), expected, source=str(part)))
    if waiting:
        yield pa.concat_tables(waiting)


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
        self._parts, self._schema, self._queries = parts(path), schema, queries
        self._spans: list[tuple[Path, int, int | None, int | None]] = []
        for part in self._parts:
            self._spans += self._spans_of(part)

    def _spans_of(self, part: Path) -> Iterator[tuple[Path, int, int | None, int | None]]:
        """Yield each row group of a file, with the first and the last place of its queries."""
        with timed("files"), pq.ParquetFile(readable(part)) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            batches = np.split(np.arange(len(ends)), np.flatnonzero(np.diff(ends // AT_ONCE)) + 1) if len(ends) else []
            for batch in batches:  # few lookups, because each lookup hashes all queries
                ids = file.read_row_groups(batch.tolist(), columns=["query_id"])["query_id"].cast(TEXT)
                places, start = pc.index_in(ids, value_set=self._queries), 0
                for group in batch.tolist():
                    span = pc.min_max(places.slice(start, file.metadata.row_group(group).num_rows))
                    yield part, group, span["min"].as_py(), span["max"].as_py()
                    start += file.metadata.row_group(group).num_rows

    def rows(self, places: np.ndarray) -> pa.Table:
        """Read the rows of the queries at ascending `places` of `queries`. Row groups without them are skipped."""
        first, last, tables = places[0], places[-1], [self._schema.empty_table()]
        for part in self._parts:
            groups = [
                group
                for file, group, low, high in self._spans
                if file == part and low is not None and high is not None and low <= last and first <= high
            ]
            if groups:
                with timed("files"), pq.ParquetFile(readable(part)) as file:
                    table = file.read_row_groups(groups, columns=self._schema.names)
                tables.append(check(table, self._schema, source=str(part)))
        table = pa.concat_tables(tables)
        return table.filter(pc.is_in(table["query_id"], value_set=self._queries.take(pa.array(places))))


ANSWERED_QUERIES = "answered"
"""Key of a ranking part's note with the number of its queries that retrieved something."""


def write_part(path: Path, tables: Iterable[pa.Table], schema: pa.Schema, noted: Mapping[str, Any]) -> None:
    """Write one part of a table: each of `tables` as a row group, and notes (JSON values) in its metadata.

    The notes may still change while the tables are made. `notes` reads them. The write is not atomic.
    """
    path.parent.mkdir(exist_ok=True)
    with timed("files"), pq.ParquetWriter(path, schema) as writer:
        for table in tables:
            writer.write_table(check(table, schema, source=path.name))
        writer.add_key_value_metadata({key: json.dumps(value) for key, value in noted.items()})


def write_ranking_part(path: Path, tables: Iterable[pa.Table], schema: pa.Schema, **noted: Any) -> None:
    """Write one part of a ranking, with the note that `counts` reads. A table has all rows of its queries."""
    noted[ANSWERED_QUERIES] = 0

    def counted() -> Iterator[pa.Table]:
        for table in tables:
            noted[ANSWERED_QUERIES] += pc.sum(pc.equal(table["rank"], 1)).as_py() or 0
            yield table

    write_part(path, counted(), schema, noted)


def notes(path: Path, key: str) -> list[Any]:
    """Read a note that `write_part` left in each part of a table. It is None in parts without the note."""
    return [json.loads(pq.read_metadata(readable(part)).metadata.get(key.encode(), "null")) for part in parts(path)]


def counts(ranking: Path) -> dict[str, int]:
    """Count the queries that retrieved something, and the rows. Only the metadata of its
    parts is read, which `write_ranking_part` wrote."""
    return {"answered": sum(notes(ranking, ANSWERED_QUERIES)), "rows": rows_in(ranking)}


def records(path: Path, key: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Read the rows with some ids, by id. Of the file, only the id column and row groups with such an id are read."""
    rows: dict[str, dict[str, Any]] = {}
    sought = pa.array(ids, TEXT)
    with pq.ParquetFile(readable(path)) as file:
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


def elements(path: Path) -> int:
    """Count the elements of a table's longest column. If its rows are lists, count the elements in the lists."""
    return sum(_elements(pq.read_metadata(readable(part))) for part in parts(path))


def _elements(metadata: pq.FileMetaData) -> int:
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
