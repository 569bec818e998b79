"""The files of DPR: documents as TSV, questions with gold documents as JSON, questions with answers as TSV.

One id space: the ids of the TSV's first column (row numbers from 1 in the Wikipedia of DPR) are the `passage_id` of
the JSON, and both stay as they are. Questions have no ids of their own: they get SPLIT-ROW, with rows from 0 as
Pyserini counts its topics.
"""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from components.sources import base
from components.sources.reading import Item, fields, plain_or_gz, read_array, read_lines
from components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """A folder with files of DPR."""

    path: str
    """The folder; `$SPARRING_DATA` takes the place of a leading `data/`."""
    documents: str = "psgs_w100.tsv"
    """TSV of id, text and title under that header, plain or .gz."""
    retriever: dict[str, str] = {}
    """JSON of a split, such as `{train: nq-train.json}`: questions, answers and gold documents."""
    questions: dict[str, str] = {}
    """TSV of a split, such as `{test: nq-test.csv}`: questions and answers, without judgements."""
    positives: int | None = Field(default=None, ge=1)
    """How many of a question's positive contexts are relevant: all, or the first so many."""
    straight_apostrophes: bool = True
    """Whether a question's typographic apostrophes become plain ones, as DPR has them before a model reads them."""
    hard_negatives: int = Field(default=0, ge=0)
    """How many of a question's hard negative contexts become judgements of relevance 0."""

    @model_validator(mode="after")
    def _splits_are_apart(self) -> Self:
        both = self.retriever.keys() & self.questions.keys()
        if both:
            raise ValueError(f"split {min(both)!r} is in both retriever and questions; keep it in one")
        return self

    def files(self) -> dict[str, Path]:
        """The documents, then the files of each split."""
        names = [self.documents, *self.retriever.values(), *self.questions.values()]
        return {name: self._path(name) for name in names}

    def read_documents(self) -> Iterator[Document | Bad]:
        """The lines below the header."""
        for line in read_lines(self._path(self.documents)):
            if isinstance(line, Bad):
                yield line
                continue
            cells = fields(line.text)
            if len(cells) != 3:
                yield Bad("wrong columns", line.place, f"expected id, text and title, got {len(cells)} columns")
            elif not (line.place.endswith(":1") and cells[0] == "id"):
                yield document(cells[0], cells[2], cells[1], line.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The questions of every split."""
        for split, name in self.retriever.items():
            for row, item in enumerate(read_array(self._path(name))):
                yield self._asked(item, f"{split}-{row}", split) if isinstance(item, Item) else item
        for split, name in self.questions.items():
            for row, line in enumerate(read_lines(self._path(name))):
                yield line if isinstance(line, Bad) else self._question(line.text, f"{split}-{row}", split, line.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Gold documents, then as many hard negatives as are asked for."""
        for split, name in self.retriever.items():
            for row, item in enumerate(read_array(self._path(name))):
                if isinstance(item, Item):  # what is no object was reported when the queries were read
                    yield from self._judgements(item, f"{split}-{row}", split)

    def _judgements(self, item: Item, query_id: str, split: str) -> Iterator[Judgement | Bad]:
        lists = [item.value.get(key) or [] for key in ("positive_ctxs", "hard_negative_ctxs")]
        if not all(isinstance(contexts, list) for contexts in lists):
            yield Bad("wrong columns", item.place, "positive_ctxs and hard_negative_ctxs must be lists", query_id)
            return
        gold = {_passage_id(context) for context in lists[0]}
        others = [context for context in lists[1] if _passage_id(context) not in gold]
        for relevance, contexts in ((1, lists[0][: self.positives]), (0, others[: self.hard_negatives])):
            for context in contexts:
                yield judgement(query_id, _passage_id(context), relevance, split, item.place)

    def _asked(self, item: Item, query_id: str, split: str) -> Query | Bad:
        if "question" not in item.value:
            return Bad("wrong columns", item.place, "expected question, answers and positive_ctxs", query_id)
        return query(query_id, self._plain(item.value["question"]), item.value.get("answers"), split, item.place)

    def _question(self, text: str, query_id: str, split: str, place: str) -> Query | Bad:
        cells = fields(text)
        if len(cells) != 2:
            return Bad("wrong columns", place, f"expected question and answers, got {len(cells)} columns", query_id)
        try:
            answers = _literal(cells[1])
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return Bad("answers that are no literal", place, f"got {cells[1][:60]!r}", query_id)
        return query(query_id, self._plain(cells[0]), answers, split, place)

    def _plain(self, question: Any) -> Any:
        return question.replace("\u2019", "'") if self.straight_apostrophes and isinstance(question, str) else question

    def _path(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / name)


def _passage_id(context: Any) -> str | None:
    """The id of a context as text; the files of some data sets call it `psg_id`."""
    if not isinstance(context, dict):
        return None
    found = context.get("passage_id", context.get("psg_id"))
    return None if found is None else str(found)


def _literal(text: str) -> Any:
    """The list that a Python literal spells; nothing in it is run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # answers that are patterns hold back-slashes that mean nothing to Python
        return ast.literal_eval(text.strip())
