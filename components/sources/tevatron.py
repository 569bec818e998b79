"""Tevatron's training data, in both layouts that `tevatron/retriever/dataset.py` of its repository reads.

In the older layout, a row has `query` and `positive_passages`, which are passages with `text`, optionally `title`, and
for `DistilTrainDataset` `score`. In the newer layout, a row has `query_text`, `positive_document_ids` and
`negative_document_ids`, and the passages are rows of a corpus with `docid` and `text`. Images, videos and audio are
ignored. So are scores in a corpus, because they do not depend on the query.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparring.components.config import listing
from sparring.components.data.tables import document_text
from sparring.components.sources import base, training_groups
from sparring.components.sources.reading import matching
from sparring.components.sources.records import Bad, Document, document
from sparring.components.sources.table_files import read_table
from sparring.components.sources.training_groups import Given, divided, scores

SIDES = ("positive", "negative")


class Source(training_groups.GroupSource):
    """The keys of `format: tevatron`."""

    corpus: str | None = None
    """File of the passages, or a pattern, for rows with ids of passages. `null`: the rows contain the passages."""

    def files(self) -> dict[str, Path]:
        """Return the files of every split, and the corpus."""
        return self._files(*(pattern for _, pattern in self._patterns()), *([self.corpus] if self.corpus else []))

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the rows of the corpus, or the passages of all rows."""
        if self.corpus is None:
            yield from super().read_documents()
            return
        yield from (record for record in self._read() if isinstance(record, Bad))
        for table in matching(base.locate(self.path), self.corpus):
            for row in read_table(table):
                yield row if isinstance(row, Bad) else _document(row.value, row.place)

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """Return the query and candidates of a row of either layout."""
        older = row.get("positive_passages") is not None
        if older != (self.corpus is None):
            older_problem, problem = "rows with passages need `corpus: null`", "rows with ids of passages need `corpus`"
            return Bad("wrong columns", place, older_problem if older else problem)
        ending, text = ("passages", "query") if older else ("document_ids", "query_text")
        keys = [f"{side}_{ending}" for side in SIDES]
        if wrong := [key for key in keys if not isinstance(row.get(key), list | None)]:
            return Bad("wrong columns", place, f"{listing(wrong)} must be a list")
        if "query_id" not in row or row.get(keys[0]) is None or keys[1] not in row:
            expected = f"expected query_id, {text}, {listing(keys)}"
            return Bad("wrong columns", place, f"{expected}, but it has {', '.join(row)}")
        positives, negatives = (row[key] or [] for key in keys)
        both = [*positives, *negatives]
        targets = [1.0] * len(positives) + [0.0] * len(negatives)
        if not older:
            return Given(row["query_id"], row.get(text) or "", both, [], targets, None, split, place)
        if not all(isinstance(passage, dict) for passage in both):
            return Bad("wrong columns", place, "passages must be objects with docid and text")
        scored = [passage["score"] for passage in both if passage.get("score") is not None]
        teacher = scores(scored, place) if scored and len(scored) == len(both) else None
        if isinstance(teacher, Bad):
            return teacher
        ids = [passage.get("docid") for passage in both]
        documents = [_document(passage, place) for passage in both]
        return Given(row["query_id"], row.get(text), ids, documents, targets, teacher, split, place)


def _document(passage: dict[str, Any], place: str) -> Document | Bad:
    return document(passage.get("docid"), passage.get("title"), passage.get("text"), place)


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write rows in the older layout, which every version of Tevatron reads, with `score` if there is a teacher."""
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            both = [_passage(passage) for passage in record.documents]
            for passage, score in zip(both, record.teacher or [], strict=False):
                passage["score"] = score
            sides = zip(SIDES, divided(record), strict=True)
            lists = {f"{side}_passages": [both[place] for place in places] for side, places in sides}
            _write(file, {"query_id": record.query_id, "query": record.query, **lists})
    return path


def write_groups_and_corpus(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write rows in the newer layout, and the corpus of their passages. The layout has no place for scores."""
    path, written = folder / f"{name}.jsonl", set()
    corpus = folder / f"{name}-corpus.jsonl"
    with path.open("w", encoding="utf-8") as file, corpus.open("w", encoding="utf-8") as corpus_file:
        for record in records:
            for passage in map(_passage, record.documents):
                if passage["docid"] not in written:
                    written.add(passage["docid"])
                    text = document_text(passage["title"], passage["text"])
                    _write(corpus_file, {"docid": passage["docid"], "text": text})
            sides = zip(SIDES, divided(record), strict=True)
            ids = {f"{side}_document_ids": [record.doc_ids[place] for place in places] for side, places in sides}
            _write(file, {"query_id": record.query_id, "query_text": record.query, **ids})
    return path


def _passage(passage: Document | Bad) -> dict[str, Any]:
    assert isinstance(passage, Document)
    return {"docid": passage.doc_id, "title": passage.title, "text": passage.text}


def _write(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
