"""Parquet files: the project's own tables, or any others with a mapping of columns.

Where neither the queries nor the qrels have a column `split`, `split` names the one split that they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.config import Config, UserError, listing
from components.sources import base
from components.sources.records import (
    UNJUDGED,
    Bad,
    Document,
    Judgement,
    Query,
    document,
    first_splits,
    judgement,
    query,
)


class Columns(Config):
    """Names of columns where they differ from ours, for example `documents: {doc_id: _id}`."""

    documents: dict[str, str] = {}
    """For doc_id, title and text."""
    queries: dict[str, str] = {}
    """For query_id, text, answers and split."""
    qrels: dict[str, str] = {}
    """For query_id, doc_id, relevance and split."""


class Source(base.Source):
    """A folder with three Parquet tables, each a file or several."""

    path: str
    """The folder; `$SPARRING_DATA` takes the place of a leading `data/`."""
    documents: str = "documents.parquet"
    """File or pattern such as `documents/*.parquet`, inside the folder."""
    queries: str = "queries.parquet"
    """File or pattern."""
    qrels: str = "qrels.parquet"
    """File or pattern."""
    columns: Columns = Columns()
    """The names of the columns, where they differ from ours."""
    split: str | None = None
    """The split of all queries and judgements, where the tables do not tell."""
    splits: base.Splits = None
    """Which splits are read: all, a list, or a mapping of our names to the tables'."""

    def files(self) -> dict[str, Path]:
        """Every file of the three tables."""
        folder = base.locate(self.path)
        paths = [path for pattern in (self.documents, self.queries, self.qrels) for path in self._paths(pattern)]
        return {path.relative_to(folder).as_posix(): path for path in paths}

    def read_documents(self) -> Iterator[Document | Bad]:
        """The rows of the documents."""
        for row, place in self._rows(self.documents, ["doc_id", "text"], ["title"], self.columns.documents):
            yield document(row["doc_id"], row["title"], row["text"], place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The rows of the queries, of the chosen splits."""
        judged: dict[str, str] | None = None
        ours = {theirs: ours for ours, theirs in base.chosen(self.splits, []).items()}
        for row, place in self._rows(self.queries, ["query_id", "text"], ["answers", "split"], self.columns.queries):
            split = row["split"] or self.split
            if split is None:
                judged = first_splits(self.read_qrels()) if judged is None else judged
                split = judged.get(str(row["query_id"]), UNJUDGED)
                if split != UNJUDGED or self.splits is None:
                    yield query(row["query_id"], row["text"], row["answers"], split, place)
            elif self.splits is None or split in ours:
                yield query(row["query_id"], row["text"], row["answers"], ours.get(split, split), place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The rows of the qrels, of the chosen splits."""
        ours = {theirs: ours for ours, theirs in base.chosen(self.splits, []).items()}
        names = ["query_id", "doc_id", "relevance"]
        for row, place in self._rows(self.qrels, names, ["split"], self.columns.qrels):
            split = row["split"] or self.split
            if split is None:
                raise UserError(f"{place}: no split; give the table a column `split` or the source a `split`")
            if self.splits is None or split in ours:
                yield judgement(row["query_id"], row["doc_id"], row["relevance"], ours.get(split, split), place)

    def _paths(self, pattern: str) -> list[Path]:
        folder = base.locate(self.path)
        return sorted(folder.glob(pattern)) or [folder / pattern]

    def _rows(
        self, pattern: str, needed: list[str], optional: list[str], columns: dict[str, str]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        for path in self._paths(pattern):
            yield from _read_rows(path, needed, optional, columns)


def _read_rows(
    path: Path, needed: list[str], optional: list[str], columns: dict[str, str]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows with our names of the columns, and their places; optional columns that are not there are None."""
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
    with file:
        present = file.schema_arrow.names
        theirs = theirs_of(str(path), present, needed, optional, columns)
        number = 0
        for batch in file.iter_batches(batch_size=4096, columns=[name for name in theirs.values() if name]):
            for row in _plain(batch):
                number += 1
                yield {ours: row[name] if name else None for ours, name in theirs.items()}, f"{path}: row {number}"


def theirs_of(
    place: str, present: list[str], needed: list[str], optional: list[str], columns: dict[str, str]
) -> dict[str, str | None]:
    """The table's name for each of our columns; None for optional ones that it does not have."""
    stray = columns.keys() - {*needed, *optional}
    if stray:
        raise UserError(f"{place}: no column of ours is {min(stray)!r}; accepted: {listing(needed + optional)}")
    theirs: dict[str, str | None] = {}
    for name in (*needed, *optional):
        found = columns.get(name, name)
        if found not in present and (name in needed or name in columns):
            raise UserError(f"{place}: wrong columns: no column {found!r} for {name}; it has {listing(present)}")
        theirs[name] = found if found in present else None
    return theirs


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dictionaries. Text that is not UTF-8 becomes text that a record refuses."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        columns = {}
        for name in batch.schema.names:
            column = batch.column(name)
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                raw = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary()).to_pylist()
                columns[name] = [None if cell is None else cell.decode(errors="surrogateescape") for cell in raw]
            else:
                columns[name] = column.to_pylist()
        rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return rows
