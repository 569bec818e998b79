"""DPR's files: documents as TSV, questions with gold documents as JSON, and questions with answers as TSV.

The first column of the documents has their ids (row numbers from 1 in DPR's Wikipedia), which the JSON calls
`passage_id`. A prefix `wiki:`, which some files have, is removed. Questions have no ids in these files. They get the
ids SPLIT-ROW, with rows from 0 as in Pyserini's topics.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from sparring.components.sources import base
from sparring.components.sources.reading import Item, fields, literal, plain_or_gz, read_array, read_cells, some
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """The keys of `format: dpr`."""

    path: str
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    documents: str = "psgs_w100.tsv"
    """TSV file of the documents, with the header id, text, title. It may be plain or .gz."""
    retriever: dict[str, str] = {}
    """JSON file of each split with questions, answers and gold documents, such as `{train: nq-train.json}`."""
    questions: dict[str, str] = {}
    """TSV file of each split with questions and answers but no judgements, such as `{test: nq-test.csv}`."""
    positives: int | None = Field(default=None, ge=1)
    """Number of a question's first positive contexts that count as relevant. `null`: all."""
    straight_apostrophes: bool = True
    """Replacement of typographic apostrophes in questions by plain ones, as in DPR."""
    hard_negatives: int = Field(default=0, ge=0)
    """Number of a question's first hard negative contexts that become judgements with relevance 0."""

    @model_validator(mode="after")
    def _splits_are_disjoint(self) -> Self:
        both = self.retriever.keys() & self.questions.keys()
        if both:
            raise ValueError(f"the split {min(both)!r} is in both `retriever` and `questions`. Keep it in one of them.")
        return self

    def files(self) -> dict[str, Path]:
        """Return the documents, then the files of each split."""
        names = [self.documents, *self.retriever.values(), *self.questions.values()]
        return {name: self._path(name) for name in names}

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the lines below the header."""
        for row in read_cells(self._path(self.documents), ("id", "text", "title"), fields):
            if isinstance(row, Bad):
                yield row
            elif not (row.place.endswith(":1") and row.value["id"] == "id"):
                name = row.value["id"].removeprefix(PREFIX)
                yield document(name, row.value["title"], row.value["text"], row.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the questions of every split."""
        for split, name in self.retriever.items():
            items = some(read_array(self._path(name)), self._path(name), "questions", f"no {split!r} in `retriever`")
            for row, item in enumerate(items):
                if isinstance(item, Bad):
                    yield item
                elif "question" not in item.value:
                    yield Bad("wrong columns", item.place, "expected question, answers and positive_ctxs")
                else:
                    question, answers = self._plain(item.value["question"]), item.value.get("answers")
                    yield query(f"{split}-{row}", question, answers, split, item.place)
        for split, name in self.questions.items():
            rows = read_cells(self._path(name), ("question", "answers"), fields)
            rows = some(rows, self._path(name), "questions", f"no {split!r} in `questions`")
            for row, item in enumerate(rows):
                yield item if isinstance(item, Bad) else self._with_answers(item, f"{split}-{row}", split)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the gold documents of each question, then its hard negatives, up to `hard_negatives`."""
        for split, name in self.retriever.items():
            for row, item in enumerate(read_array(self._path(name))):
                if isinstance(item, Item):  # bad rows were reported when the queries were read
                    yield from self._judgements(item, f"{split}-{row}", split)

    def _judgements(self, item: Item, query_id: str, split: str) -> Iterator[Judgement | Bad]:
        positives, negatives = (item.value.get(key) or [] for key in ("positive_ctxs", "hard_negative_ctxs"))
        if not isinstance(positives, list) or not isinstance(negatives, list):
            yield Bad("wrong columns", item.place, "positive_ctxs and hard_negative_ctxs must be lists", query_id)
            return
        gold = {passage_id(context) for context in positives}
        negatives = [context for context in negatives if passage_id(context) not in gold]
        for relevance, contexts in ((1, positives[: self.positives]), (0, negatives[: self.hard_negatives])):
            for context in contexts:
                yield judgement(query_id, passage_id(context), relevance, split, item.place)

    def _with_answers(self, item: Item, query_id: str, split: str) -> Query | Bad:
        question, cell = item.value["question"], item.value["answers"]
        try:
            answers = literal(cell)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return Bad("answers that are not a literal", item.place, f"got {cell[:60]!r}", query_id)
        return query(query_id, self._plain(question), answers, split, item.place)

    def _plain(self, question: Any) -> Any:
        return question.replace("\u2019", "'") if self.straight_apostrophes and isinstance(question, str) else question

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)


IDS = ("passage_id", "psg_id", "id")
"""Keys of a context's id. Files of questions have `passage_id` or `psg_id`, and files of results have `id`."""
PREFIX = "wiki:"
"""Prefix of ids in some files, which write `wiki:7` for passage 7."""


def passage_id(context: Any) -> str | None:
    """Return the passage id of a context. Return None if it has none."""
    ids = (context.get(key) for key in IDS) if isinstance(context, dict) else ()
    return next((str(name).removeprefix(PREFIX) for name in ids if name is not None), None)
