"""The Arrow tables that every step speaks, and a check that says what is wrong with one.

Column names follow ir_datasets. On disk they are Parquet.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.clock import at
from components.files import replacing

DOCUMENTS = pa.schema([("doc_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
"""A document. `title` is empty where there is none and stays apart from `text`."""

QUERIES = pa.schema(
    [("query_id", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string())), ("split", pa.string())]
)
"""A query. `answers` is empty where the collection has none; `split` is train, dev, test or another name."""

QRELS = pa.schema(
    [("query_id", pa.string()), ("doc_id", pa.string()), ("relevance", pa.int32()), ("split", pa.string())]
)
"""A judgement. Relevance above 0 is relevant unless a measure says otherwise."""

RANKING = pa.schema([("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int32()), ("score", pa.float32())])
"""A retrieved document: rank from 1, scores descending, ties in order of doc_id."""

ANSWERED = RANKING.append(pa.field("hit", pa.bool_()))
"""A ranking that says of each document whether it bears an answer to the query."""

SCREENED = RANKING.append(pa.field("reason", pa.string()))
"""A ranking that says of each document why it must not become a negative; empty where it may."""

GROUPS = pa.schema(
    [
        ("query_id", pa.string()),
        ("visit", pa.int32()),
        ("doc_ids", pa.list_(pa.string())),
        ("targets", pa.list_(pa.float32())),
        ("teacher", pa.list_(pa.float32())),
    ]
)
"""One training example: a query with its candidates, what each should score, and perhaps what a teacher says.

`visit` counts how often the query was drawn before in the same phase. `teacher` is null until a ranker judged.
"""

EXPANSIONS = pa.schema([*DOCUMENTS, ("query_id", pa.string()), ("number", pa.int32())])
"""What a query may be expanded by: a document with the id `query#number`; numbers are from 1, in the order in which
they were generated, with gaps where one said what an earlier one had said. Number 0, whose text is empty, is the query
as it is."""

ANSWER_RANKS = pa.schema([("doc_id", pa.string()), ("query_id", pa.string()), ("rank", pa.int32())])
"""The rank from 1 of the first document that answers, when an expansion (`doc_id`) is issued; null where none does."""


def check(table: pa.Table, schema: pa.Schema, *, what: str) -> pa.Table:
    """The table with the schema's columns, in its order; ValueError names a missing or mistyped column."""
    for field in schema:
        if field.name not in table.column_names:
            raise ValueError(f"{what}: no column {field.name!r}; it has {', '.join(table.column_names)}")
        got = table.schema.field(field.name).type
        if got != field.type and not _same_but_wider(got, field.type):
            raise ValueError(f"{what}: column {field.name!r} is {got}, expected {field.type}")
    return table.select(schema.names).cast(schema)


def read(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, filters: list[Any] | None = None
) -> pa.Table:
    """A table, or some columns and rows of it (`filters` as pyarrow takes them); ValueError where it is another one."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with at("files"):
        return check(pq.read_table(path, columns=columns and wanted.names, filters=filters), wanted, what=str(path))


def write(path: Path, table: pa.Table, schema: pa.Schema) -> None:
    """Write a table by one atomic rename; ValueError, and no file, where it is not the schema's."""
    with replacing(path) as temporary:
        pq.write_table(check(table, schema, what=path.name), temporary)


def pieces(
    path: Path, schema: pa.Schema, *, columns: Iterable[str] | None = None, rows: int = 1_000_000
) -> Iterator[pa.Table]:
    """A table, or some columns of it, so many rows at a time, for what is too large to be held; ValueError where it is
    another one."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    with pq.ParquetFile(path) as file:
        check(file.schema_arrow.empty_table(), wanted, what=str(path))
        batches = file.iter_batches(batch_size=rows, columns=wanted.names)
        while True:
            with at("files"):
                batch = next(batches, None)
            if batch is None:
                return
            yield check(pa.Table.from_batches([batch]), wanted, what=str(path))


def by_query(path: Path, schema: pa.Schema, *, rows: int = 1_000_000) -> Iterator[pa.Table]:
    """A table whose rows of one query stand together, about so many rows at a time, no query in two pieces."""
    rest = schema.empty_table()
    for piece in pieces(path, schema, rows=rows):
        rest = pa.concat_tables([rest, piece])
        last = pc.equal(rest["query_id"], rest["query_id"][-1])  # it may go on in the next piece
        done, rest = rest.filter(pc.invert(last)), rest.filter(last)
        if len(done):
            yield done
    if len(rest):
        yield rest


def counts(ranking: Path) -> dict[str, int]:
    """How many queries a ranking has documents for, and how many documents in all; read a piece at a time."""
    with at("files"), pq.ParquetFile(ranking) as file:
        ranks = (batch["rank"] for batch in file.iter_batches(columns=["rank"]))
        answered = sum(pc.sum(pc.equal(rank, 1)).as_py() or 0 for rank in ranks)
        return {"answered": answered, "rows": file.metadata.num_rows}


def records(path: Path, key: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """The records of a few ids; the file is scanned, never held."""
    import pyarrow.dataset as ds  # what few callers need

    table = ds.dataset(path).to_table(filter=pc.field(key).isin(pa.array(ids, pa.string())))
    return {record[key]: record for record in table.to_pylist()}


def _same_but_wider(got: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a cast keeps every value: large or dictionary strings, other widths of numbers, null columns."""
    if pa.types.is_list(expected):
        if pa.types.is_list(got) or pa.types.is_large_list(got):
            return got.value_type == expected.value_type or _same_but_wider(got.value_type, expected.value_type)
        return pa.types.is_null(got)
    if pa.types.is_string(expected):
        return pa.types.is_large_string(got) or pa.types.is_dictionary(got) or pa.types.is_null(got)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(got)
    return pa.types.is_floating(expected) and (pa.types.is_floating(got) or pa.types.is_integer(got))
