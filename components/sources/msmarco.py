"""An MS MARCO folder: `collection.tsv`, `queries.SPLIT.tsv`, `qrels.SPLIT.tsv`, each plain or .gz.

The files have no header and no quotes. Without `splits` every `queries.*.tsv` is a split. The small dev set is part of
the dev set, so a folder with both needs, for example, `splits: {train: train, dev: dev.small}`.
"""

from collections.abc import Iterator
from pathlib import Path

from components.sources import base
from components.sources.reading import named, plain_or_gz, read_lines, some, splits
from components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


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
        for line in read_lines(self._path("collection.tsv")):
            if isinstance(line, Bad):
                yield line
                continue
            cells = line.text.split("\t")
            if len(cells) != len(self.columns):
                yield Bad("wrong columns", line.place, f"expected {', '.join(self.columns)}, got {len(cells)} columns")
                continue
            row = dict(zip(self.columns, cells, strict=True))
            yield document(row.get("doc_id"), row.get("title"), row.get("text"), line.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The queries of each split, with or without judgements."""
        for split, theirs in self._splits().items():
            path = self._path(f"queries.{theirs}.tsv")
            for line in some(read_lines(path), path, "queries", "`splits` without this one"):
                if isinstance(line, Bad):
                    yield line
                    continue
                cells = line.text.split("\t")
                if len(cells) != 2:
                    yield Bad("wrong columns", line.place, f"expected query id and text, got {len(cells)} columns")
                    continue
                yield query(cells[0], cells[1], None, split, line.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The judgements of each split that has some."""
        files = self.files().values()
        for split, theirs in self._splits().items():
            path = self._path(f"qrels.{theirs}.tsv")
            if path not in files:
                continue
            for line in some(read_lines(path), path, "qrels", "no such file"):
                if isinstance(line, Bad):
                    yield line
                    continue
                cells = line.text.split()
                if len(cells) != 4:
                    yield Bad("wrong columns", line.place, f"expected query, 0, document, score, got {len(cells)}")
                    continue
                yield judgement(cells[0], cells[2], cells[3], split, line.place)

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)

    def _splits(self) -> dict[str, str]:
        return base.chosen(self.splits, splits(base.locate(self.path), "queries."))
