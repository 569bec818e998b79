"""What a source holds, all of it read: counts, lengths, samples, and what is wrong with it."""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from sparring.components.sources.base import Source
from sparring.components.sources.forms import HOW, in_form
from sparring.components.sources.languages import Sample
from sparring.components.sources.own_queries import own_documents
from sparring.components.sources.records import LISTED, Bad, Document, Judgement, Query, is_list
from sparring.components.sources.survey import percentile

SAMPLES = 2
LENGTHS = 100_000
"""So many texts are measured, the first of each table."""


class Column:
    """Hashes of what must be looked up or counted, 8 bytes each."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, *values: str) -> None:
        """Count a value of some parts."""
        self._hashes.append(hash(values))

    def distinct(self) -> np.ndarray:
        """The hashes, each once, in order."""
        return np.unique(np.array(self._hashes, dtype=np.int64))

    def repeated(self) -> int:
        """How many came again."""
        return len(self._hashes) - len(self.distinct())

    def lacking(self, known: Column) -> np.ndarray:
        """The positions of values that another column has not."""
        return np.flatnonzero(~np.isin(np.array(self._hashes, dtype=np.int64), known.distinct()))

    def first_in(self, known: Column) -> np.ndarray:
        """For each value where another column has it first; -1 where it has it not."""
        own = np.array(self._hashes, dtype=np.int64)
        values, at = np.unique(np.array(known._hashes, dtype=np.int64), return_index=True)
        if not len(values):
            return np.full(len(own), -1)
        place = np.minimum(np.searchsorted(values, own), len(values) - 1)
        return np.where(values[place] == own, at[place], -1)

    def unlike(self, other: Column, at: np.ndarray) -> np.ndarray:
        """The positions of values that differ from another column's at given places; -1 is no place."""
        places = np.flatnonzero(at >= 0)
        own, theirs = np.array(self._hashes, dtype=np.int64), np.array(other._hashes, dtype=np.int64)
        return places[own[places] != theirs[at[places]]]


class Texts:
    """A table of texts with ids."""

    def __init__(self) -> None:
        self.count = 0
        self.ids, self.texts, self.records = Column(), Column(), Column()
        self.forms = dict[str, str]()  # of ids that have others in Unicode: the id of each NFC form
        self.samples: list[tuple[str, str]] = []
        self.sample = Sample()
        self._words: list[int] = []

    def add(self, name: str, text: str, *others: str) -> None:
        """Count a record."""
        self.count += 1
        self.ids.add(name)
        if not name.isascii() and len(self.forms) < LENGTHS:
            self.forms[in_form("NFC", name)] = name
        self.texts.add(text)
        self.records.add(name, text, *others)
        self.sample.add(text)
        if len(self.samples) < SAMPLES and (name, text) not in self.samples:
            self.samples.append((name, text))
        if len(self._words) < LENGTHS:
            self._words.append(len(text.split()))

    def again(self) -> int:
        """How many records are the same as an earlier one."""
        return self.records.repeated()

    def lengths(self) -> str:
        """Words of a text, for people."""
        if not self._words:
            return ""
        return f"{np.mean(self._words):.0f} words in the mean, 95 % have at most {percentile(self._words)}"


MISSING = ("judgement of a missing query", "judgement of a missing document")
"""What is wrong with judgements whose ids are not there."""
TWO_SPLITS, OTHER, TWO_RELEVANCES = "query in two splits", "duplicate query id", "two relevances for one pair"
"""What else is wrong with records that a run reads one by one."""


class Inspection:
    """What was found in a source."""

    def __init__(self, source: Source) -> None:
        self.documents, self.queries = Texts(), Texts()
        self.judged_by_split = Counter[str]()
        self.judgements, self.grades = Counter[str](), Counter[int]()
        self.bad, self.examples = Counter[str](), dict[str, str]()
        self.unread_judgements = 0
        """How many of the bad records are judgements that cannot be read."""
        self.own_documents = own_documents(source, self._documents(source))
        """Queries that are documents themselves."""
        by_split = dict[str, Column]()
        self._splits = Column()  # of each query
        for query in self._good(source.read_queries()):
            self.queries.add(query.query_id, query.text, query.split, *query.answers)
            self._splits.add(query.split)
            by_split.setdefault(query.split, Column()).add(query.query_id)
        self.by_split = {split: len(ids.distinct()) for split, ids in by_split.items()}
        self._queries(source)
        self._judgements(source)
        if (again := self.documents.ids.repeated()) > 0:
            self.bad["duplicate document id"] += again

    def _documents(self, source: Source) -> Iterator[Document]:
        for document in self._good(source.read_documents()):
            self.documents.add(document.doc_id, f"{document.title} {document.text}".strip())
            yield document

    def _queries(self, source: Source) -> None:
        first = self.queries.ids.first_in(self.queries.ids)
        elsewhere = self._splits.unlike(self._splits, first)
        others = np.setdiff1d(self.queries.records.unlike(self.queries.records, first), elsewhere)
        self._refuse(TWO_SPLITS, elsewhere, source.read_queries, _in_two_splits)
        detail = "with another text, or other answers, before"
        self._refuse(OTHER, others, source.read_queries, lambda one: (one.query_id, detail))

    def _judgements(self, source: Source) -> None:
        asked, judged, pairs, splits, grades = Column(), Column(), Column(), Column(), Column()
        relevant, bad_before = set[str](), self.bad.total()
        for one in self._good(source.read_qrels()):
            asked.add(one.query_id)
            judged.add(one.doc_id)
            pairs.add(one.query_id, one.doc_id)
            splits.add(one.split)
            grades.add(str(one.relevance))
            self.judgements[one.split] += 1
            self.grades[one.relevance] += 1
            if one.relevance > 0 and one.query_id not in relevant:
                relevant.add(one.query_id)
                self.judged_by_split[one.split] += 1
        self.unread_judgements = self.bad.total() - bad_before
        no_query, no_document = asked.lacking(self.queries.ids), judged.lacking(self.documents.ids)
        elsewhere = np.setdiff1d(splits.unlike(self._splits, asked.first_in(self.queries.ids)), no_document)
        told = np.concatenate([no_query, no_document, elsewhere])
        others = np.setdiff1d(grades.unlike(grades, pairs.first_in(pairs)), told)
        read = source.read_qrels
        self._refuse(MISSING[0], no_query, read, lambda one: (one.query_id, _missing(one.query_id, self.queries)))
        self._refuse(MISSING[1], no_document, read, lambda one: (one.doc_id, _missing(one.doc_id, self.documents)))
        self._refuse(TWO_SPLITS, elsewhere, read, _in_two_splits)
        self._refuse(
            TWO_RELEVANCES,
            others,
            read,
            lambda one: (one.query_id, f"{one.doc_id!r} has {one.relevance} here, another before"),
        )

    def _refuse(
        self,
        reason: str,
        places: np.ndarray,
        read: Callable[[], Iterable[Any]],
        shown: Callable[[Any], tuple[str, str]],
    ) -> None:
        """Count the good records at some places as bad, and keep the first as an example, by its id and a detail."""
        if len(places):
            good = (one for one in read() if not isinstance(one, Bad))
            record = next(islice(good, int(places[0]), None))
            name, detail = shown(record)
            self.bad[reason] += len(places)
            self.examples.setdefault(reason, Bad(reason, record.place, detail, name).example())

    def _good(self, records: Iterable[Any]) -> Iterable[Any]:
        for record in records:
            if isinstance(record, Bad):
                self.bad[record.reason] += 1
                self.examples.setdefault(record.reason, record.example())
            else:
                yield record

    @property
    def in_two_forms(self) -> bool:
        """Whether judgements name queries or documents by ids that are there in another Unicode form."""
        return any(HOW in self.examples.get(reason, "") for reason in MISSING)

    @property
    def relevant(self) -> float:
        """Relevant judgements of a query that has one, in the mean."""
        right = sum(count for grade, count in self.grades.items() if grade > 0)
        return right / max(1, self.judged_by_split.total())


def _missing(name: str, table: Texts) -> str:
    """What to say of an id that is not there: that it is there in another Unicode form, or that it is several ids."""
    there = table.forms.get(in_form("NFC", name))
    if there is None:
        return LISTED if is_list(name) else ""
    forms = [
        next((form for form in ("NFC", "NFD") if unicodedata.is_normalized(form, one)), "neither NFC nor NFD")
        for one in (name, there)
    ]
    return f"it is there in another Unicode form: {forms[0]} here, {forms[1]} there. {HOW}"


def _in_two_splits(record: Query | Judgement) -> tuple[str, str]:
    """What to say of a query, or of its judgement, that was of another split before."""
    return record.query_id, f"{record.split} here, another before"
