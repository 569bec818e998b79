"""Hugging Face datasets, from the hub or saved to disk, with names of columns.

If the queries' table has no column `split`, a query belongs to the split whose qrels judge it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from sparring.components.config import Config, UserError, listing
from sparring.components.sources import base
from sparring.components.sources.parquet import theirs_of
from sparring.components.sources.reading import fitting
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
from sparring.components.sources.rows import batches, load


class Table(Config):
    """One split of a dataset, from the hub (`dataset`) or from a folder written by `save_to_disk` (`path`)."""

    dataset: str | None = None
    """The name on the hub, such as `BeIR/scifact`."""
    path: str | None = None
    """A folder. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    name: str | None = None
    """The name of the dataset's configuration, if it has several."""
    split: str | None = None
    """The dataset's split; needed unless `path` holds a single table."""
    revision: str | None = None
    """Commit, tag or branch on the hub. Only a commit guarantees that the same data is read again."""
    columns: dict[str, str | None] = {}
    """The table's names of columns that it calls differently, such as `{doc_id: _id}`. Null leaves a column out that
    the table may do without, such as `{answers: null}`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.dataset is None) == (self.path is None):
            raise ValueError("give either dataset (on the hub) or path (a folder)")
        if self.path is not None and (self.name or self.revision):
            raise ValueError("name and revision have no effect on a folder")
        if self.dataset is not None and self.split is None:
            raise ValueError("a dataset on the hub needs a split")
        return self


class Source(base.Source):
    """The keys of `format: huggingface`: one table of documents, one of queries, and one of qrels for each split."""

    documents: Table
    """The table with the columns doc_id, text and optionally title."""
    queries: Table
    """The table with the columns query_id, text and optionally answers and split."""
    qrels: dict[str, Table] = {}
    """For each split, the table with the columns query_id, doc_id and relevance."""

    def files(self) -> dict[str, Path]:
        """The files of the folders. The hub's are not listed: the revision identifies them."""
        files: dict[str, Path] = {}
        for declared in [self.documents, self.queries, *self.qrels.values()]:
            if declared.path is not None:
                folder = base.locate(declared.path)
                inside = [path for path in fitting(folder, "**/*") if path.is_file()]
                names = {f"{declared.path}/{path.relative_to(folder).as_posix()}": path for path in inside}
                files |= names or {declared.path: folder}
        return files

    def read_documents(self) -> Iterator[Document | Bad]:
        """The rows of the documents."""
        for row, place in _rows(self.documents, ["doc_id", "text"], ["title"]):
            yield document(row["doc_id"], row["title"], row["text"], place, columns=self.documents.columns)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The rows of the queries."""
        splits = first_splits(self.read_qrels())
        for row, place in _rows(self.queries, ["query_id", "text"], ["answers", "split"]):
            split = row["split"] or splits.get(self.id_in_form(str(row["query_id"])), UNJUDGED)
            yield query(row["query_id"], row["text"], row["answers"], split, place, columns=self.queries.columns)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The rows of the qrels, split by split."""
        for split, declared in self.qrels.items():
            for row, place in _rows(declared, ["query_id", "doc_id", "relevance"], []):
                ids = row["query_id"], row["doc_id"]
                yield judgement(*ids, row["relevance"], split, place, columns=declared.columns)


def _rows(declared: Table, needed: list[str], optional: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows with our names of the columns, and the place of each; a missing optional column is None."""
    place = str(base.locate(declared.path)) if declared.path is not None else str(declared.dataset)
    table = _load(declared, place)
    theirs = theirs_of(place, table.column_names, needed, optional, declared.columns)
    number = 0
    for batch in batches(table.select_columns([name for name in theirs.values() if name]), place):
        columns = [batch[name] if name else None for name in theirs.values()]
        for i in range(len(next(column for column in columns if column is not None))):
            number += 1
            row = {ours: column[i] if column else None for ours, column in zip(theirs, columns, strict=True)}
            yield row, f"{place}: row {number}"


def _load(declared: Table, place: str) -> Any:
    """The table, memory-mapped."""
    loaded = load(Path(place)) if declared.path is not None else _of_hub(declared, place)
    if isinstance(loaded, dict):
        if declared.split not in loaded:
            raise UserError(f"{place}: no split {declared.split!r}; it has {listing(loaded)}")
        return loaded[declared.split]
    if declared.path is not None and declared.split not in (None, str(loaded.split)):
        raise UserError(f"{place}: split: got {declared.split!r}; accepted: none, as this is one table")
    return loaded


def _of_hub(declared: Table, place: str) -> Any:
    try:
        import datasets  # takes seconds, and a plan must not wait for it
    except ModuleNotFoundError:
        raise UserError("format huggingface: the package `datasets` is not installed") from None
    try:
        return datasets.load_dataset(declared.dataset, declared.name, split=declared.split, revision=declared.revision)
    except (FileNotFoundError, datasets.exceptions.DatasetsError, ValueError) as error:
        raise UserError(f"{place}: {str(error).splitlines()[0]}") from None
