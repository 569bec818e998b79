"""Training data of Tevatron, in both layouts that `tevatron/retriever/dataset.py` of its repository reads.

`TrainDataset` takes a row with `positive_passages` as the older layout: `query`, and lists of passages with `text`,
perhaps `title`, and for `DistilTrainDataset` `score`. Otherwise a row has `query_text`, `positive_document_ids` and
`negative_document_ids`, and the passages are the rows of a corpus with `docid` and `text`. Images, videos and audio are
not read, nor scores in a corpus, which are the same for every query.
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
from sparring.components.sources.rows import read_rows
from sparring.components.sources.training_groups import Given, divided, scores

SIDES = ("positive", "negative")


class Source(training_groups.GroupSource):
    """The keys of `format: tevatron`."""

    corpus: str | None = None
    """The file of the passages, for rows that have their ids alone. It may be a pattern. Null where rows have their
    passages."""

    def files(self) -> dict[str, Path]:
        """The files of every split, and the corpus."""
        return self._files(
            *(pattern for _, pattern in self._patterns()), *([] if self.corpus is None else [self.corpus])
        )

    def read_documents(self) -> Iterator[Document | Bad]:
        """The rows of the corpus, or the passages of all rows."""
        if self.corpus is None:
            yield from super().read_documents()
            return
        for record in self._read():
            if isinstance(record, Bad):
                yield record
        for table in matching(base.locate(self.path), self.corpus):
            for row in read_rows(table):
                if isinstance(row, Bad):
                    yield row
                else:
                    yield document(row.value.get("docid"), row.value.get("title"), row.value.get("text"), row.place)

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """A row of either layout."""
        older = row.get("positive_passages") is not None
        if older and self.corpus is not None:
            return Bad("wrong columns", place, "rows with passages need no corpus; accepted: corpus: null")
        ending, asked = ("passages", "query") if older else ("document_ids", "query_text")
        keys = [f"{side}_{ending}" for side in SIDES]
        if wrong := [key for key in keys if not isinstance(row.get(key), list | None)]:
            return Bad("wrong columns", place, f"{listing(wrong)}: accepted: a list")
        positives, negatives = row.get(keys[0]), row.get(keys[1]) or []
        if "query_id" not in row or positives is None or keys[1] not in row:
            names = f"query_id, {asked}, positive_{ending} and negative_{ending}"
            return Bad("wrong columns", place, f"expected {names}; it has {', '.join(row)}")
        if not older and self.corpus is None:
            return Bad("wrong columns", place, "rows with ids of passages need a corpus; set the key `corpus`")
        both = [*positives, *negatives]
        targets = [1.0] * len(positives) + [0.0] * len(negatives)
        query_id = row["query_id"]
        if not older:
            return Given(query_id, row.get(asked) or "", both, [], targets, None, split, place)
        if not all(isinstance(passage, dict) for passage in both):
            return Bad("wrong columns", place, "passages must be objects with docid and text")
        scored = [passage["score"] for passage in both if passage.get("score") is not None]
        teacher = scores(scored, place) if scored and len(scored) == len(both) else None
        if isinstance(teacher, Bad):
            return teacher
        documents = [document(one.get("docid"), one.get("title"), one.get("text"), place) for one in both]
        return Given(
            query_id, row.get(asked), [one.get("docid") for one in both], documents, targets, teacher, split, place
        )


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write rows of the older layout, which every version of Tevatron reads; with `score` where there is a teacher."""
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            both = [_passage(one) for one in record.documents]
            for passage, score in zip(both, record.teacher or [], strict=False):
                passage["score"] = score
            lists = zip(SIDES, divided(record), strict=True)
            own = {f"{side}_passages": [both[at] for at in where] for side, where in lists}
            _write(file, {"query_id": record.query_id, "query": record.query, **own})
    return path


def write_groups_and_corpus(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write rows of the newer layout, and beside them the corpus of their passages. It has no place for scores."""
    path, written = folder / f"{name}.jsonl", set()
    with path.open("w", encoding="utf-8") as file, (folder / f"{name}-corpus.jsonl").open("w", encoding="utf-8") as own:
        for record in records:
            for one in record.documents:
                if isinstance(one, Document) and one.doc_id not in written:
                    written.add(one.doc_id)
                    _write(own, {"docid": one.doc_id, "text": document_text(one.title, one.text)})
            lists = zip(SIDES, divided(record), strict=True)
            ids = {f"{side}_document_ids": [record.doc_ids[at] for at in where] for side, where in lists}
            _write(file, {"query_id": record.query_id, "query_text": record.query, **ids})
    return path


def _passage(one: Document | Bad) -> dict[str, Any]:
    assert isinstance(one, Document)
    return {"docid": one.doc_id, "title": one.title, "text": one.text}


def _write(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
