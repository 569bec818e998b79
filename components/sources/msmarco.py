"""An MS MARCO folder: `collection.tsv`, `queries.SPLIT.tsv` and `qrels.SPLIT.tsv`, each plain or .gz.

The files have no header and no quotes. Without `splits`, every `queries.*.tsv` is a split. The small dev set is part of
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
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    columns: list[str] = ["doc_id", "text"]
    """Columns of `collection.tsv`. Columns that are not called doc_id, title or text are ignored. For MS MARCO
    documents (not passages) use `[doc_id, url, title, text]`."""
    splits: base.Splits = None
    """Splits to read: all (`null`), a list of names, or a mapping such as `{dev: dev.small}`. Splits that are named
    must have qrels."""

    def files(self) -> dict[str, Path]:
        """Return the collection, and the queries and qrels of the chosen splits."""
        splits = self._splits().values()
        paths = [self._path("collection.tsv"), *(self._path(f"queries.{name}.tsv") for name in splits)]
        qrels = [self._path(f"qrels.{name}.tsv") for name in splits]
        paths += [path for path in qrels if self.splits is not None or path.exists()]
        return named(base.locate(self.path), paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the lines of the collection."""
        for row in read_cells(self._path("collection.tsv"), self.columns):
            if isinstance(row, Bad):
                yield row
            else:
                yield document(row.value.get("doc_id"), row.value.get("title"), row.value.get("text"), row.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries of each split, with or without judgements."""
        for split, name in self._splits().items():
            path = self._path(f"queries.{name}.tsv")
            rows = read_cells(path, ("id", "text"))
            for row in some(rows, path, "queries", "`splits` without this one"):
                yield row if isinstance(row, Bad) else query(row.value["id"], row.value["text"], None, split, row.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgements of each split that has some."""
        files = self.files().values()
        for split, name in self._splits().items():
            path = self._path(f"qrels.{name}.tsv")
            if path in files:
                yield from some(read_judgements(path, split), path, "qrels", "no such file")

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)

    def _splits(self) -> dict[str, str]:
        return base.chosen(self.splits, splits(base.locate(self.path), "queries."))
