"""Parquet files: this project's own tables, or others with names of columns.

If only one of queries and qrels has a column `split`, it holds for the other too. If neither has, the key `split` names
the split of all.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, UserError, listing
from sparring.components.sources import base
from sparring.components.sources.reading import matching, named, readable, regular, some
from sparring.components.sources.records import (
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

PARQUET = "a Parquet file"
Role = Literal["documents", "queries", "qrels"]
"""A table of a source: the key that names its files, and the one of its columns' names."""


Files = str | list[str] | dict[str, str] | None
"""The files of a table: a name or pattern, several of them, or the split of each."""


def patterns(files: Files) -> dict[str, str | None]:
    """The names and patterns of a table's files, with the split that is said for them.

    >>> patterns(["a.csv", "b.csv"]), patterns({"train": "a.csv"}), patterns(None)
    ({'a.csv': None, 'b.csv': None}, {'a.csv': 'train'}, {})
    """
    if isinstance(files, dict):
        return {pattern: split for split, pattern in files.items()}
    return dict.fromkeys([files] if isinstance(files, str) else files or [])


class Columns(Config):
    """The tables' names of columns that they call differently, such as `documents: {doc_id: _id}`. Null leaves a column
    out that a table may do without, such as `queries: {answers: null}`."""

    documents: dict[str, str | None] = {}
    """Names of doc_id, title and text."""
    queries: dict[str, str | None] = {}
    """Names of query_id, text, answers and split; of pairs also of relevance."""
    qrels: dict[str, str | None] = {}
    """Names of query_id, doc_id, relevance and split."""


class Source(base.Source):
    """The keys of `format: parquet`."""

    path: str
    """The folder. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    documents: str | list[str] = "documents.parquet"
    """The file inside the folder, or a pattern such as `documents/*.parquet`; or several of them."""
    queries: Files = "queries.parquet"
    """The file, pattern, or several; or the file of each split: `{train: asked.parquet, test: test.parquet}`. Null for
    none: documents alone."""
    qrels: Files = "qrels.parquet"
    """The file, pattern, or several; or the file of each split. Null for none: nobody has said what is relevant."""
    graded: bool = Field(True, exclude_if=lambda graded: graded)
    """Whether qrels have a column of relevances. False where they have none: each row says that a document is
    relevant."""
    grades: dict[str, int] = Field({}, exclude_if=lambda grades: not grades)
    """What a word in the column of relevances counts: `{a bit: 1, very: 3}`. Numbers there stay as they are."""
    columns: Columns = Columns()
    """The tables' names of columns that they call differently."""
    split: str | None = None
    """The split of all queries and judgements, for tables without a column `split`."""
    splits: base.Splits = None
    """Which splits are read: all (null), a list of names, or a mapping from new names to the tables'."""

    @field_validator("grades", mode="before")
    @classmethod
    def _words_are_text(cls, grades: Any) -> Any:
        if isinstance(grades, dict) and any(isinstance(word, bool) for word in grades):
            raise ValueError("YAML takes yes, no, on and off for true and false; accepted: such words in quotes")
        return grades

    @model_validator(mode="after")
    def _a_file_has_one_split(self) -> Self:
        for role in ("queries", "qrels"):
            files = getattr(self, role)
            if isinstance(files, dict) and len(patterns(files)) < len(files):
                raise ValueError(f"{role}: a file stands for two splits; accepted: files with a column `split`")
        if self.grades and not self.graded:
            raise ValueError("grades: says what words of a column count, and with `graded: false` there is none")
        return self

    def files(self) -> dict[str, Path]:
        """Every file of the three tables."""
        roles: tuple[Role, ...] = ("documents", "queries", "qrels")
        return named(base.locate(self.path), [path for role in roles for path in self._splits(role)])

    def key_of(self, column: str) -> str:
        """The qrels' columns are those that the source names."""
        return f"columns.qrels.{column}"

    def read_documents(self) -> Iterator[Document | Bad]:
        """The rows of the documents."""
        for row, place in self._rows("documents", ["doc_id", "text"], ["title"]):
            yield document(row["doc_id"], row["title"], row["text"], place, columns=self.columns.documents)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The rows of the queries, of the chosen splits."""
        judged: dict[str, str] | None = None
        ours = {theirs: ours for ours, theirs in base.chosen(self.splits, []).items()}
        columns = self.columns.queries
        for row, place in self._rows("queries", ["query_id", "text"], ["answers", "split"]):
            split = row["split"] or self.split
            if split is None:
                judged = first_splits(self.read_qrels()) if judged is None else judged
                split = judged.get(str(row["query_id"]), UNJUDGED)
                if split != UNJUDGED or self.splits is None:
                    yield query(row["query_id"], row["text"], row["answers"], split, place, columns=columns)
            elif self.splits is None or str(split) in ours:
                split = ours.get(str(split), split)
                yield query(row["query_id"], row["text"], row["answers"], split, place, columns=columns)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The rows of the qrels, of the chosen splits."""
        ours = {theirs: ours for ours, theirs in base.chosen(self.splits, []).items()}
        names = ["query_id", "doc_id", *(["relevance"] if self.graded else [])]
        asked: dict[str, str] | None = None
        for row, place in self._rows("qrels", names, ["split"]):
            split = row["split"] or self.split
            if split is None:
                asked = self._asked_in() if asked is None else asked
                split = asked.get(str(row["query_id"]), UNJUDGED) if asked else None
            if split is None:
                raise UserError(f"{place}: no split; give the table a column `split`, or the source the key `split`")
            if self.splits is None or str(split) in ours:
                relevance = self._grade(row["relevance"]) if self.graded else 1
                ids, split = (row["query_id"], row["doc_id"]), ours.get(str(split), split)
                yield judgement(*ids, relevance, split, place, columns=self.columns.qrels)

    def _grade(self, said: Any) -> Any:
        """The relevance that a cell says, by a word or a number."""
        return self.grades.get(said.strip(), said) if isinstance(said, str) else said

    def _asked_in(self) -> dict[str, str]:
        """The split of each query whose row names one."""
        rows = self._rows("queries", ["query_id", "text"], ["answers", "split"])
        return {str(row["query_id"]): row["split"] for row, _ in rows if row["split"]}

    def _splits(self, role: Role) -> dict[Path, str | None]:
        """The files of a table in their order, with the split that is said for each."""
        folder = base.locate(self.path)
        files = patterns(getattr(self, role))
        return {path: split for pattern, split in files.items() for path in matching(folder, pattern)}

    def _rows(self, role: Role, needed: list[str], optional: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
        """A table's rows; of queries and qrels that are declared at least one."""
        rows, files = self._of_files(role, needed, optional), patterns(getattr(self, role))
        if not files or role == "documents":  # no documents at all are refused for every format
            return rows
        folder = base.locate(self.path)
        return some(rows, listing(str(folder / one) for one in files), role, f"`{role}: null` for none")

    def _of_files(self, role: Role, needed: list[str], optional: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
        """The rows of all files of a table. What is said of a file's split holds for its rows without one."""
        for path, split in self._splits(role).items():
            none = True
            for row, place in self._read(path, needed, optional, getattr(self.columns, role)):
                none = False
                if split is not None:
                    row["split"] = row["split"] or split
                if self.ids is not None:
                    row |= {name: self.id_in_form(row[name]) for name in ("doc_id", "query_id") if name in row}
                yield row, place
            if none and split is not None:
                raise UserError(f"{path}: no {role}, and `{role}` says that the split {split} is there")

    def _read(
        self, path: Path, needed: list[str], optional: list[str], columns: dict[str, str | None]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """The rows of one file, with their places."""
        return read_rows(path, needed, optional, columns)


def read_rows(
    path: Path, needed: list[str], optional: list[str], columns: dict[str, str | None]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows with our names of the columns, and the place of each; a missing optional column is None."""
    with opened(path) as file:
        theirs = theirs_of(str(path), file.schema_arrow.names, needed, optional, columns)
        for row, place in plain_rows(file, path, [name for name in theirs.values() if name]):
            yield {ours: row[name] if name else None for ours, name in theirs.items()}, place


def opened(path: Path) -> pq.ParquetFile:
    """A Parquet file, which closes at the end of a `with` block; UserError where it is none."""
    with readable(path, PARQUET):
        return pq.ParquetFile(regular(path))


def plain_rows(
    file: pq.ParquetFile, path: Path, columns: list[str] | None = None
) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of an open file, or some of their columns, and the place of each."""
    number = 0
    with readable(path, PARQUET):
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            for row in plain(batch):
                number += 1
                yield row, f"{path}: row {number}"


def check_ours(place: str, accepted: list[str], columns: dict[str, str | None]) -> None:
    """UserError where a name of a column is declared for one that we do not have."""
    if unknown := columns.keys() - {*accepted}:
        raise UserError(f"{place}: columns: unknown column {min(unknown)!r}; accepted: {listing(accepted)}")


def theirs_of(
    place: str, present: list[str], needed: list[str], optional: list[str], columns: dict[str, str | None]
) -> dict[str, str | None]:
    """The table's name of each of our columns, None for an optional one that it lacks; UserError for a wrong name."""
    check_ours(place, [*needed, *optional], columns)
    theirs: dict[str, str | None] = {}
    for name in (*needed, *optional):
        column = columns.get(name, name)
        if column is None:
            if name in needed:
                raise UserError(f"{place}: columns: {name}: null, and this column is needed; accepted: its name")
            theirs[name] = None
            continue
        if column not in present and (name in needed or name in columns):
            raise UserError(f"{place}: wrong columns: no column {column!r} for {name}; it has {listing(present)}")
        if present.count(column) > 1:
            raise UserError(f"{place}: wrong columns: {column!r} is there more than once; accepted: once")
        theirs[name] = column if column in present else None
    return theirs


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dictionaries. Text that is not UTF-8 is decoded to surrogates, which the records refuse."""
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
