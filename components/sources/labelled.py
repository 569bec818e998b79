"""Sentences with a class, and pairs of sentences with a class or a similarity, as judged by people.

Such a set is a collection too. Its sentences are the documents. A repeated sentence is a document each time. In a pair
that people call equivalent, each sentence is a query whose relevant document is its partner (Chuang et al., 2022, Table
2.10). A query has the id of its own sentence, so that the sentence can be left out of the query's ranking.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, model_validator

from sparring.components.data.own_documents import Decision
from sparring.components.sources import base
from sparring.components.sources.records import (
    Bad,
    Document,
    Example,
    Judgement,
    Query,
    document,
    is_split,
    judgement,
    query,
)

ALL = "all"
"""Name of the split of a set without splits."""


class Labelled(NamedTuple):
    """One or two sentences with a class, `label`, or a similarity, `score`."""

    example_id: str
    sentences: tuple[str, ...]
    label: str | None
    score: float | None
    subset: str
    split: str
    place: str

    def ids(self) -> tuple[str, ...]:
        """Return the document ids of the sentences."""
        return tuple(f"{self.example_id}.{number}" for number in range(1, len(self.sentences) + 1))


class LabelledSource(base.Source):
    """The keys of formats whose sentences have labels."""

    own_document: Decision | None = "leave out with copies"
    """Treatment of the document that a query itself is. Each query is a sentence of the set, and would retrieve itself
    first. 39 of STS-B's 194 queries have copies in further pairs, and the paper does not say how it treats them. With
    `leave out` no encoder could exceed an R@1 of .80, so SimCSE's .78 would be almost perfect."""
    positive: float = 5.0
    """Minimum score of two sentences that mean the same. Each of them is a query whose relevant document is its
    partner. 5 is the highest score of STS and SICK."""

    @model_validator(mode="after")
    def _all_queries(self) -> Self:
        for name in ("sample", "hold_out"):
            if getattr(self, name):
                raise ValueError(
                    f"{name}: this key does not apply to labelled sentences, whose pairs are the queries. Remove it."
                )
        return self

    @abstractmethod
    def read_labelled(self) -> Iterator[Labelled | Bad]:
        """Yield every labelled sentence or pair of the chosen splits, in the order of the files."""

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield each sentence. The sentences of the example `test-7` have the ids `test-7.1` and `test-7.2`."""
        for record in self.read_labelled():
            if isinstance(record, Bad):
                yield record
                continue
            for name, sentence in zip(record.ids(), record.sentences, strict=True):
                yield document(name, None, sentence, record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield both sentences of each pair whose sentences mean the same."""
        for record in self._positive():
            for name, sentence in zip(record.ids(), record.sentences, strict=True):
                yield query(name, sentence, None, record.split, record.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield, for each of these queries, the judgement of its partner."""
        for record in self._positive():
            first, second = record.ids()
            yield judgement(first, second, 1, record.split, record.place)
            yield judgement(second, first, 1, record.split, record.place)

    def read_examples(self) -> Iterator[Example]:
        """Yield the labels and scores. Bad records were reported when the documents were read."""
        for record in self.read_labelled():
            if isinstance(record, Labelled):
                first, second = (*record.ids(), None)[:2]
                assert first is not None
                yield Example(record.example_id, first, second, *record[2:])

    def _positive(self) -> Iterator[Labelled]:
        for record in self.read_labelled():
            if isinstance(record, Labelled) and record.score is not None and record.score >= self.positive:
                yield record


def _has_labels(source: base.Source) -> base.Source:
    if not isinstance(source, LabelledSource):
        raise ValueError(f"the format {source.format!r} has no labelled sentences. Use senteval or tsv.")
    return source


AnyLabelledSource = Annotated[base.AnySource, AfterValidator(_has_labels)]
"""The type of a config field that holds a source of labelled sentences."""


def labelled(name: str, sentences: tuple[str, ...], label: str, split: str, place: str) -> Labelled | Bad:
    """Check a sentence, or a pair, with its class."""
    if not label.strip():
        return Bad("empty label", place, "expected a class")
    return _checked(Labelled(name, sentences, label.strip(), None, "", split, place))


def scored(
    name: str, sentences: tuple[str, ...], score: str, split: str, place: str, *, subset: str = ""
) -> Labelled | Bad:
    """Check a pair with its similarity."""
    try:
        number = math.nan if "_" in score else float(score)  # Python takes 1_0 for 10
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return Bad("score that is not a number", place, f"got {score!r:.40}, expected a number such as 3.8")
    return _checked(Labelled(name, sentences, None, number, subset, split, place))


def _checked(record: Labelled) -> Labelled | Bad:
    if not all(sentence.strip() for sentence in record.sentences):
        return Bad("empty sentence", record.place, "expected text")
    if not is_split(record.split):
        return Bad("split without a name", record.place, f"got {record.split!r:.40}")
    named = zip(record.ids(), record.sentences, strict=True)
    documents = (document(name, None, sentence, record.place) for name, sentence in named)
    return next((bad for bad in documents if isinstance(bad, Bad)), record)
