"""An MS MARCO folder: `collection.tsv`, `queries.SPLIT.tsv`, `qrels.SPLIT.tsv`, each plain or .gz.

None has a header or quotes. Where `splits` is not given every `queries.*.tsv` is a split; as the small dev set is part
of the dev set, a folder with both needs a choice such as `splits: {train: train, dev: dev.small}`.
"""

from collections.abc import Iterator
from pathlib import Path

from components.sources import base
from components.sources.reading import plain_or_gz, read_lines
from components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """An MS MARCO folder."""

    path: str
    """The folder; `$SPARRING_DATA` takes the place of a leading `data/`."""
    columns: list[str] = ["doc_id", "text"]
    """Columns of `collection.tsv`; of other names than doc_id, title and text none is read. The documents (rather
    than passages) of MS MARCO have `[doc_id, url, title, text]`."""
    splits: base.Splits = None
    """Which splits are read: all, a list, or a mapping such as `{dev: dev.small}`. Chosen ones must have qrels."""

    def files(self) -> dict[str, Path]:
        """The collection, and the queries and qrels of the chosen splits."""
        folder = base.locate(self.path)
        splits = self._splits().values()
        paths = [self._path("collection.tsv"), *(self._path(f"queries.{theirs}.tsv") for theirs in splits)]
        qrels = [self._path(f"qrels.{theirs}.tsv") for theirs in splits]
        paths += [path for path in qrels if self.splits is not None or path.exists()]
        return {path.relative_to(folder).as_posix(): path for path in paths}

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
        """The queries of each split, judged or not."""
        for split, theirs in self._splits().items():
            for line in read_lines(self._path(f"queries.{theirs}.tsv")):
                if isinstance(line, Bad):
                    yield line
                    continue
                cells = line.text.split("\t")
                if len(cells) != 2:
                    yield Bad("wrong columns", line.place, f"expected query id and text, got {len(cells)} columns")
                    continue
                yield query(cells[0], cells[1], None, split, line.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The judgements of each split that has them."""
        files = self.files().values()
        for split, theirs in self._splits().items():
            path = self._path(f"qrels.{theirs}.tsv")
            for line in read_lines(path) if path in files else ():
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
        found = base.locate(self.path).glob("queries.*.tsv*")
        return base.chosen(self.splits, sorted({path.name[len("queries.") :].partition(".tsv")[0] for path in found}))
