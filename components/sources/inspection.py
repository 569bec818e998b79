"""Inspection of a source: counts, lengths, samples and bad records."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from sparring.components.sources.base import Source
from sparring.components.sources.forms import HOW, other_form
from sparring.components.sources.languages import Sample
from sparring.components.sources.own_queries import own_documents
from sparring.components.sources.records import Bad, Document
from sparring.components.sources.survey import percentile

SAMPLES = 2
LENGTHS = 100_000
"""Number of first texts of each table whose lengths are measured."""
BATCH = 10_000
"""Number of judgements that are looked up together."""
MISSING = ("judgement of a missing query", "judgement of a missing document")
"""Reasons for judgements whose ids are missing."""


class Hashes:
    """A collection of hashes that are counted or looked up. A hash has 8 bytes."""

    def __init__(self) -> None:
        self._values = array("q")

    def add(self, *parts: object) -> None:
        """Add a value's hash."""
        self._values.append(hash(parts))

    def distinct(self) -> np.ndarray:
        """Return the distinct hashes, sorted."""
        return np.unique(np.array(self._values, dtype=np.int64))

    def repeated(self) -> int:
        """Return the number of values that are repetitions of earlier ones."""
        return len(self._values) - len(self.distinct())


def lacking(names: Sequence[str], ids: np.ndarray) -> np.ndarray:
    """Return the positions of names whose hashes are not among the sorted, distinct hashes `ids`."""
    wanted = np.array([hash((name,)) for name in names], dtype=np.int64)
    places = np.searchsorted(ids, wanted)
    return np.flatnonzero(np.append(ids, 0)[places] != wanted) if len(ids) else np.arange(len(names))


def _has(ids: np.ndarray, name: str) -> bool:
    return not len(lacking([name], ids))


class Texts:
    """Statistics of a table of texts with ids."""

    def __init__(self) -> None:
        self.count = 0
        self.ids, self.texts, self.records = Hashes(), Hashes(), Hashes()
        self.samples: list[tuple[str, str]] = []
        self.sample = Sample()
        self._words: list[int] = []

    def add(self, name: str, text: str, *rest: str) -> None:
        """Count a record."""
        self.count += 1
        self.ids.add(name)
        self.texts.add(text)
        self.records.add(name, text, *rest)
        self.sample.add(text)
        if len(self.samples) < SAMPLES and (name, text) not in self.samples:
            self.samples.append((name, text))
        if len(self._words) < LENGTHS:
            self._words.append(len(text.split()))

    def lengths(self) -> str:
        """Describe the lengths of the texts in words."""
        if not self._words:
            return ""
        return f"{np.mean(self._words):.0f} words in the mean, 95 % have at most {percentile(self._words)}"


class Inspection:
    """Statistics of all records of a source."""

    def __init__(self, source: Source) -> None:
        self.documents, self.queries = Texts(), Texts()
        self.judgements, self.grades = Counter[str](), Counter[int]()
        self.bad, self.examples = Counter[str](), dict[str, str]()
        self.own_documents = own_documents(source, self._documents(source))
        """Queries that are documents themselves."""
        by_split = defaultdict[str, Hashes](Hashes)
        for query in self._good(source.read_queries()):
            self.queries.add(query.query_id, query.text, query.split, *query.answers)
            by_split[query.split].add(query.query_id)
        self.by_split = {split: len(ids.distinct()) for split, ids in by_split.items()}
        before = self.bad.total()
        judged = self._judgements(source)
        self.unread_judgements = self.bad.total() - before - sum(self.bad[reason] for reason in MISSING)
        """Number of judgements that cannot be read."""
        self.judged_by_split = {split: len(ids.distinct()) for split, ids in judged.items()}
        self._count("duplicate document id", self.documents.ids.repeated())
        self._count("duplicate query id", self.queries.ids.repeated() - self.queries.records.repeated())

    def _documents(self, source: Source) -> Iterator[Document]:
        for document in self._good(source.read_documents()):
            self.documents.add(document.doc_id, f"{document.title} {document.text}".strip())
            yield document

    def _judgements(self, source: Source) -> dict[str, Hashes]:
        """Count judgements, and return the queries with a relevant document, by split."""
        queries, documents = self.queries.ids.distinct(), self.documents.ids.distinct()
        relevant = defaultdict[str, Hashes](Hashes)
        pairs, graded, judged, by_split = Hashes(), Hashes(), Hashes(), Hashes()
        records = self._good(source.read_qrels())
        while batch := list(islice(records, BATCH)):
            for record in batch:
                self.judgements[record.split] += 1
                self.grades[record.relevance] += 1
                if record.relevance > 0:
                    relevant[record.split].add(record.query_id)
                pairs.add(record.query_id, record.doc_id)
                graded.add(record.query_id, record.doc_id, record.relevance)
                judged.add(record.query_id)
                by_split.add(record.query_id, record.split)
            no_query = lacking([record.query_id for record in batch], queries)
            no_document = lacking([record.doc_id for record in batch], documents)
            for reason, places, column, ids in (
                (MISSING[0], no_query, "query_id", queries),
                (MISSING[1], np.setdiff1d(no_document, no_query), "doc_id", documents),
            ):
                if len(places) and reason not in self.examples:
                    record = batch[places[0]]
                    name = getattr(record, column)
                    detail = other_form(name, partial(_has, ids))
                    self.examples[reason] = Bad(reason, record.place, detail, name).example()
                self._count(reason, len(places))
        self._count("query in two splits", len(by_split.distinct()) - len(judged.distinct()))
        self._count("two relevances for one pair", len(graded.distinct()) - len(pairs.distinct()))
        return relevant

    def _count(self, reason: str, count: int) -> None:
        if count:
            self.bad[reason] += count

    def _good(self, records: Iterable[Any]) -> Iterator[Any]:
        for record in records:
            if isinstance(record, Bad):
                self.bad[record.reason] += 1
                self.examples.setdefault(record.reason, record.example())
            else:
                yield record

    @property
    def in_two_forms(self) -> bool:
        """True if judgements name queries or documents whose ids exist in a different Unicode form."""
        return any(HOW in self.examples.get(reason, "") for reason in MISSING)

    @property
    def relevant(self) -> float:
        """Mean number of relevant documents, over the queries with at least one."""
        count = sum(count for grade, count in self.grades.items() if grade > 0)
        return count / max(1, sum(self.judged_by_split.values()))
