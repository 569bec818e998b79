"""The schemas of the tables that steps exchange, and reading and writing them as Parquet files.

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

from sparring.components.files import replacing
from sparring.components.timing import timed

TEXT = pa.large_string()
"""Ids and texts. An array of Arrow's `string` holds at most 2 GiB, which the ids of 80 million documents exceed."""

DEV = "dev"
"""The split that numbers are chosen on. A collection may have no queries in it."""

AT_ONCE = 5_000_000
"""Rows whose ids are in memory at once; changes no result."""

DOCUMENTS = pa.schema([("doc_id", TEXT), ("title", TEXT), ("text", TEXT)])
"""A document. `title` may be empty; `text` does not repeat it."""

QUERIES = pa.schema([("query_id", TEXT), ("text", TEXT), ("answers", pa.large_list(TEXT)), ("split", TEXT)])
"""A query. `answers` may be empty; `split` is train, dev, test or another name."""

QRELS = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("relevance", pa.int32()), ("split", TEXT)])
"""A judgement. A relevance above 0 means relevant unless a measure says otherwise."""

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
"""A sentence, or a pair of sentences, with what people said of it: a class, `label`, or how similar the two are,
`score`; the other is null. `first` and `second` are ids of documents, and `second` is null for a sentence alone.
`subset` names the part of a set of pairs that is made of several, as STS12 to STS16 are; else it is empty."""

RANKING = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("rank", pa.int32()), ("score", pa.float32())])
"""A retrieved document. Ranks start at 1, and scores descend.

One rule orders documents with equal scores, in every retriever, fusion and file. They keep the order that they had: a
ranker's that of the list it reads, a run file's that of its ranks. Where they had none, as in BM25, search and fusion,
they are in order of doc_id, by code points. The rule depends neither on shards nor on the kind of retriever, and
measures, exports and searches all have that order.
"""

ANSWERED = RANKING.append(pa.field("hit", pa.bool_()))
"""A ranking; `hit` says whether the document contains an answer to the query."""

SCREENED = RANKING.append(pa.field("reason", TEXT))
"""A ranking; `reason` says why the document must not become a negative, or is empty if it may."""

GROUPS = pa.schema(
    [
        ("query_id", TEXT),
        ("visit", pa.int32()),
        ("doc_ids", pa.large_list(TEXT)),
        ("targets", pa.large_list(pa.float32())),
        ("teacher", pa.large_list(pa.float32())),
    ]
)
"""One training example: a query, its candidates, the target of each, and optionally a teacher's score of each.

`visit` is the number of earlier groups of the same query in the same phase. `teacher` is null until a ranker has scored
the group.
"""

OWN = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("left_out", pa.bool_())])
"""A query that is a document itself, with that document; `left_out` says whether rankings are without it."""

GIVEN = pa.schema([GROUPS.field(name) for name in ("query_id", "doc_ids", "targets", "teacher")])
"""Candidates that a source of training data offers a query: its positives, with targets above 0, and negatives that
were mined before; `teacher` is null where the source has no scores. A query may have several rows."""

EXPANSIONS = pa.schema([*DOCUMENTS, ("query_id", TEXT), ("number", pa.int32())])
"""An expansion of a query, as a document with the id `query#number`. Numbers start at 1 and follow the order of
generation, without those of duplicates. Number 0, with an empty text, stands for the query without expansion."""

ANSWER_RANKS = pa.schema([("doc_id", TEXT), ("query_id", TEXT), ("rank", pa.int32())])
"""The rank of the first document that contains an answer, for the query expanded by `doc_id`; null if none does."""


def document_text(title: str, text: str) -> str:
    """Join a document's title and text, as a model reads it."""
    return f"{title} {text}".strip()


TRUTHS = {"true": 1, "false": 0}
"""Words that count as relevances."""


def as_relevance(value: Any) -> int | None:
    """Convert a relevance from a file to an integer that the table of judgements holds, or to None if it is none.
    `2.0` is 2, true is 1 and false is 0, as values and as words.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in TRUTHS:
            return TRUTHS[word]
        return int(word.partition(".")[0]) if re.fullmatch(r"[+-]?[0-9]{1,9}(\.0*)?", word) else None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and abs(value) < 10**9 else None


def check(table: pa.Table, schema: pa.Schema, *, source: str) -> pa.Table:
    """Return the table with the schema's columns, in its order.

    ValueError names the `source` of the table, and a column that is missing or mistyped.
    """
    for field in schema:
        if field.name not in table.column_names:
            raise ValueError(f"{source}: no column {field.name!r}; it has {', '.join(table.column_names)}")
        present = table.schema.field(field.name).type
        if present != field.type and not _is_castable(present, field.type):
            raise ValueError(f"{source}: column {field.name!r} is {present}, expected {field.type}")
    return table.select(schema.names).cast(schema)


def read(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, filters: list[Any] | None = None
) -> pa.Table:
    """Read a table, or some of its columns and rows (`filters` as in pyarrow); ValueError if it has another schema."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with timed("files"):
        return check(pq.read_table(path, columns=columns and wanted.names, filters=filters), wanted, source=str(path))


def write(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    """Write a table by one atomic rename; ValueError, and no file, if it has another schema."""
    with replacing(path) as temporary:
        pq.write_table(check(table, schema, source=path.name), temporary)


def pieces(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, rows: int = 1_000_000
) -> Iterator[pa.Table]:
    """Read a table that may not fit in memory in pieces of at most `rows` rows.

    If rows have lists, a piece has about `rows` list elements instead. ValueError if the table has another schema.
    """
    expected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with pq.ParquetFile(path) as file:
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
    """Read the rows of some queries. The file is read in pieces and never held in memory."""
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
    """Read a table with adjacent rows for each query, in pieces of about `rows` rows, each query in one piece."""
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
    """Read some queries' rows in several tables together, in blocks of about `rows` rows.

    Each table has adjacent rows for each query. A block has a query's rows in every table. Queries come in the order of
    their first row: those of the first table, then those that only the second has, and so on.
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
    """A table with rows of some queries, of which a few queries' are read at a time. Where it has its queries in the
    order of these, and each query's rows together, little is read twice."""

    def __init__(self, path: Path, schema: pa.Schema, queries: pa.Array) -> None:
        self._path, self._schema, self._queries = path, schema, queries
        self._spans: list[tuple[int | None, int | None]] = []
        with timed("files"), pq.ParquetFile(path) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            batches = np.split(np.arange(len(ends)), np.flatnonzero(np.diff(ends // AT_ONCE)) + 1) if len(ends) else []
            for batch in batches:  # few searches: each first hashes all queries
                ids = file.read_row_groups(batch.tolist(), columns=["query_id"])["query_id"].cast(TEXT)
                places, start = pc.index_in(ids, value_set=queries), 0
                for group in batch:
                    span = pc.min_max(places.slice(start, file.metadata.row_group(group).num_rows))
                    self._spans.append((span["min"].as_py(), span["max"].as_py()))
                    start += file.metadata.row_group(group).num_rows

    def rows(self, places: np.ndarray) -> pa.Table:
        """Read the rows of the queries at some ascending places. Row groups without any of them are skipped."""
        first, last = places[0], places[-1]
        groups = [
            group for group, (low, high) in enumerate(self._spans) if low is not None and low <= last and first <= high
        ]
        with timed("files"), pq.ParquetFile(self._path) as file:
            read = check(file.read_row_groups(groups, columns=self._schema.names), self._schema, source=str(self._path))
        return read.filter(pc.is_in(read["query_id"], value_set=self._queries.take(pa.array(places))))


def counts(ranking: Path) -> dict[str, int]:
    """Count the queries and the rows of a ranking, which is read in pieces."""
    with timed("files"), pq.ParquetFile(ranking) as file:
        ranks = (batch["rank"] for batch in file.iter_batches(columns=["rank"]))
        answered = sum(pc.sum(pc.equal(rank, 1)).as_py() or 0 for rank in ranks)
        return {"answered": answered, "rows": file.metadata.num_rows}


def records(path: Path, key: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Read the rows with some ids, by id.

    Only the ids, and the row groups that hold one of them, are read from the file.
    """
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
    """Return which rows have one of the wanted ids."""
    return pc.is_in(table[key].cast(TEXT), value_set=wanted)


def elements(metadata: pq.FileMetaData) -> int:
    """Elements of the longest column: its rows, or where these are lists, what is in them."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = range(metadata.num_columns)
    return max((sum(group.column(column).num_values for group in groups) for column in columns), default=0)


def _is_castable(present: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a type converts to the expected: small or dictionary strings, number widths, null columns."""
    if pa.types.is_large_list(expected):
        if pa.types.is_list(present) or pa.types.is_large_list(present):
            return present.value_type == expected.value_type or _is_castable(present.value_type, expected.value_type)
        return pa.types.is_null(present)
    if pa.types.is_large_string(expected):
        return pa.types.is_string(present) or pa.types.is_dictionary(present) or pa.types.is_null(present)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(present)
    return pa.types.is_floating(expected) and (pa.types.is_floating(present) or pa.types.is_integer(present))
