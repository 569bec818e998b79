"""A BEIR folder: `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`, each plain or .gz.

`queries.jsonl` may have answers in `metadata.answers` or `answers`: a list of texts, or SQuAD's form. A query belongs
to the split whose qrels judge it. A query without judgements has the split `unjudged`, and is skipped if `splits` is
set.
"""

from collections.abc import Iterator
from pathlib import Path

from sparring.components.sources import base
from sparring.components.sources.reading import Item, fields, named, plain_or_gz, read_cells, read_objects, splits
from sparring.components.sources.records import (
    UNJUDGED,
    Bad,
    Document,
    Judgement,
    Query,
    answer_texts,
    document,
    first_splits,
    judgement,
    query,
)

QRELS = ("query-id", "corpus-id", "score")


class Source(base.Source):
    """The keys of `format: beir`."""

    path: str
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    splits: base.Splits = None
    """Files of `qrels/` to read: all (`null`), a list of names, or a mapping such as `{dev: validation}`."""

    def files(self) -> dict[str, Path]:
        """Return the corpus, the queries, and the qrels of the chosen splits."""
        names = ["corpus.jsonl", "queries.jsonl", *(f"qrels/{name}.tsv" for name in self._splits().values())]
        return named(base.locate(self.path), map(self._path, names))

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the lines of the corpus."""
        for item in read_objects(self._path("corpus.jsonl")):
            if isinstance(item, Bad):
                yield item
            elif "_id" not in item.value or not {"title", "text"} & item.value.keys():
                yield Bad("wrong columns", item.place, "expected _id, title and text")
            else:
                yield document(item.value["_id"], item.value.get("title"), item.value.get("text"), item.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries that the chosen splits judge, and the unjudged ones if `splits` is not set."""
        splits = first_splits(self.read_qrels())
        for item in read_objects(self._path("queries.jsonl")):
            if isinstance(item, Bad):
                yield item
                continue
            split = splits.get(self.id_in_form(str(item.value.get("_id"))), UNJUDGED)
            if split != UNJUDGED or self.splits is None:
                yield _query(item, split)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the lines of the qrels, split by split."""
        for split, name in self._splits().items():
            for row in read_cells(self._path(f"qrels/{name}.tsv"), QRELS, fields):
                if isinstance(row, Bad):
                    yield row
                elif not (
                    row.place.endswith(":1") and row.value["query-id"].lower() in ("query-id", "query_id", "qid")
                ):
                    query_id, doc_id, relevance = row.value.values()
                    yield judgement(query_id, doc_id, relevance, split, row.place)

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)

    def _splits(self) -> dict[str, str]:
        return base.chosen(self.splits, splits(base.locate(self.path) / "qrels", ""))


def _query(item: Item, split: str) -> Query | Bad:
    if not {"_id", "text"} <= item.value.keys():
        return Bad("wrong columns", item.place, "expected _id and text")
    metadata = item.value.get("metadata")
    answers = metadata.get("answers") if isinstance(metadata, dict) else None
    if answers is None:
        answers = answer_texts(item.value.get("answers"))  # this key may also mean something else
    return query(item.value["_id"], item.value["text"], answers, split, item.place)
