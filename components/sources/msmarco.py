"""An MS MARCO folder: `collection.tsv`, `queries.SPLIT.tsv`, `qrels.SPLIT.tsv`, each plain or .gz.

The files have no header and no quotes. Without `splits` every `queries.*.tsv` is a split. The small dev set is part of
the dev set, so a folder with both needs, for example, `splits: {train: train, dev: dev.small}`.
"""

from collections.abc import Iterator
from pathlib import Path

from sparring.components.sources import base
from sparring.components.sources.reading import named, plain_or_gz, read_cells, read_judgements, some, splits
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, query


class Source(base.Source):
    """The keys of `format: msmarco`."""

    path: str
    """The folder. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    columns: list[str] = ["doc_id", "text"]
    """The columns of `collection.tsv`. Those not called doc_id, title or text are ignored. For MS MARCO documents (not
    passages): `[doc_id, url, title, text]`."""
    splits: base.Splits = None
    """Which splits are read: all (null), a list of names, or a mapping such as `{dev: dev.small}`. Named splits must
    have qrels."""

    def files(self) -> dict[str, Path]:
        """The collection, and the queries and qrels of the chosen splits."""
        folder = base.locate(self.path)
        splits = self._splits().values()
        paths = [self._path("collection.tsv"), *(self._path(f"queries.{theirs}.tsv") for theirs in splits)]
        qrels = [self._path(f"qrels.{theirs}.tsv") for theirs in splits]
        paths += [path for path in qrels if self.splits is not None or path.exists()]
        return named(folder, paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """The lines of the collection."""
        for row in read_cells(self._path("collection.tsv"), self.columns):
            if isinstance(row, Bad):
                yield row
                continue
            own = dict(zip(self.columns, row.cells, strict=True))
            yield document(own.get("doc_id"), own.get("title"), own.get("text"), row.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The queries of each split, with or without judgements."""
        for split, theirs in self._splits().items():
            path = self._path(f"queries.{theirs}.tsv")
            rows = read_cells(path, ("query id", "text"))
            for row in some(rows, path, "queries", "`splits` without this one"):
                yield row if isinstance(row, Bad) else query(row.cells[0], row.cells[1], None, split, row.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The judgements of each split that has some."""
        files = self.files().values()
        for split, theirs in self._splits().items():
            path = self._path(f"qrels.{theirs}.tsv")
            if path not in files:
                continue
            yield from some(read_judgements(path, split), path, "qrels", "no such file")

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)

    def _splits(self) -> dict[str, str]:
        return base.chosen(self.splits, splits(base.locate(self.path), "queries."))
