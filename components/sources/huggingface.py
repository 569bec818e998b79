"""Hugging Face datasets, from the hub or saved to disk.

If the table of queries has no column `split`, a query belongs to the split whose qrels judge it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from sparring.components.config import Config, UserError, listing
from sparring.components.sources import base
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
from sparring.components.sources.table_files import dataset_rows, files_of, load_dataset, names_in_table


class Table(Config):
    """A split of a dataset, from the hub (`dataset`) or from a folder written by `save_to_disk` (`path`)."""

    dataset: str | None = None
    """Name on the hub, such as `BeIR/scifact`."""
    path: str | None = None
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    name: str | None = None
    """Name of the dataset's configuration, if it has several."""
    split: str | None = None
    """Split of the dataset. It is required, unless `path` contains a single table."""
    revision: str | None = None
    """Commit, tag or branch on the hub. Only a commit guarantees that the same data is read again."""
    columns: dict[str, str | None] = {}
    """Names of columns in the table, by our names, where they differ. For example `{doc_id: _id}`. A value of null
    omits an optional column, for example `{answers: null}`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.dataset is None) == (self.path is None):
            raise ValueError("set either `dataset` (a name on the hub) or `path` (a folder), and not both")
        if self.path is not None and (self.name or self.revision):
            raise ValueError("`name` and `revision` have no effect on a folder. Remove them.")
        if self.dataset is not None and self.split is None:
            raise ValueError("a dataset on the hub needs a split. Set `split`.")
        return self


class Source(base.Source):
    """The keys of `format: huggingface`: a table of documents, a table of queries, and a table of qrels per split."""

    documents: Table
    """Table with the columns doc_id, text and optionally title."""
    queries: Table
    """Table with the columns query_id, text and optionally answers and split."""
    qrels: dict[str, Table] = {}
    """Table of each split with the columns query_id, doc_id and relevance."""

    def files(self) -> dict[str, Path]:
        """Return the files of the folders. Files on the hub are not listed, because the revision identifies them."""
        files: dict[str, Path] = {}
        for table in [self.documents, self.queries, *self.qrels.values()]:
            if table.path is not None:
                folder = base.locate(table.path)
                files |= {f"{table.path}/{path.relative_to(folder).as_posix()}": path for path in files_of(folder)}
        return files

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the rows of the documents."""
        for row, place in _rows(self.documents, ["doc_id", "text"], ["title"]):
            yield document(row["doc_id"], row["title"], row["text"], place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the rows of the queries."""
        splits = first_splits(self.read_qrels())
        for row, place in _rows(self.queries, ["query_id", "text"], ["answers", "split"]):
            split = row["split"] or splits.get(self.id_in_form(str(row["query_id"])), UNJUDGED)
            yield query(row["query_id"], row["text"], row["answers"], split, place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the rows of the qrels, split by split."""
        for split, table in self.qrels.items():
            for row, place in _rows(table, ["query_id", "doc_id", "relevance"], []):
                yield judgement(row["query_id"], row["doc_id"], row["relevance"], split, place)


def _rows(table: Table, required: list[str], optional: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield rows with our names of columns, each with its place. A missing optional column is None."""
    place = str(base.locate(table.path)) if table.path is not None else str(table.dataset)
    loaded = _load(table, place)
    names = names_in_table(place, loaded.column_names, required, optional, table.columns)
    for row in dataset_rows(loaded.select_columns([name for name in names.values() if name]), place):
        yield {column: row.value[name] if name else None for column, name in names.items()}, row.place


def _load(table: Table, place: str) -> Any:
    """Load the table, memory-mapped."""
    loaded = load_dataset(Path(place)) if table.path is not None else _of_hub(table, place)
    if isinstance(loaded, dict):
        if table.split not in loaded:
            raise UserError(
                f"{place}: there is no split {table.split!r}. Use one of these: {listing(loaded)}.",
                code="unknown-split",
            )
        return loaded[table.split]
    if table.path is not None and table.split not in (None, str(loaded.split)):
        raise UserError(
            f"{place}: split: got {table.split!r}, but the folder is a single table. Remove `split`.", code="no-splits"
        )
    return loaded


def _of_hub(table: Table, place: str) -> Any:
    try:
        import datasets  # takes seconds, and a plan must not wait for it
    except ModuleNotFoundError:
        raise UserError("format huggingface: the package `datasets` is not installed. Install it.") from None
    try:
        return datasets.load_dataset(table.dataset, table.name, split=table.split, revision=table.revision)
    except (FileNotFoundError, datasets.exceptions.DatasetsError, ValueError) as error:
        raise UserError(f"{place}: {str(error).splitlines()[0]}") from None
