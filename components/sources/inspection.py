"""What a source holds, all of it read: counts, lengths, samples, and what is wrong with it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from components.sources.base import Source
from components.sources.records import LISTED, Bad, Judgement, is_list
from components.sources.survey import percentile

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


class Texts:
    """A table of texts with ids."""

    def __init__(self) -> None:
        self.count = 0
        self.ids, self.texts, self._records = Column(), Column(), Column()
        self.samples: list[tuple[str, str]] = []
        self._words: list[int] = []

    def add(self, name: str, text: str, split: str = "") -> None:
        """Count a record."""
        self.count += 1
        self.ids.add(name)
        self.texts.add(text)
        self._records.add(name, text, split)
        if len(self.samples) < SAMPLES and (name, text) not in self.samples:
            self.samples.append((name, text))
        if len(self._words) < LENGTHS:
            self._words.append(len(text.split()))

    def again(self) -> int:
        """How many records are the same as an earlier one."""
        return self._records.repeated()

    def lengths(self) -> str:
        """Words of a text, for people."""
        if not self._words:
            return ""
        return f"{np.mean(self._words):.0f} words in the mean, 95 % have at most {percentile(self._words)}"


MISSING = ("judgement of a missing query", "judgement of a missing document")
"""What is wrong with judgements whose ids are not there."""


class Inspection:
    """What was found in a source."""

    def __init__(self, source: Source) -> None:
        self.documents, self.queries = Texts(), Texts()
        self.judged_by_split = Counter[str]()
        self.judgements, self.grades = Counter[str](), Counter[int]()
        self.bad, self.examples = Counter[str](), dict[str, str]()
        for document in self._good(source.read_documents()):
            self.documents.add(document.doc_id, f"{document.title} {document.text}".strip())
        by_split = dict[str, Column]()
        for query in self._good(source.read_queries()):
            self.queries.add(query.query_id, query.text, query.split)
            by_split.setdefault(query.split, Column()).add(query.query_id)
        self.by_split = {split: len(ids.distinct()) for split, ids in by_split.items()}
        self._judgements(source)
        if (again := self.documents.ids.repeated()) > 0:
            self.bad["duplicate document id"] += again

    def _judgements(self, source: Source) -> None:
        asked, judged = Column(), Column()
        relevant = set[str]()
        for one in self._good(source.read_qrels()):
            asked.add(one.query_id)
            judged.add(one.doc_id)
            self.judgements[one.split] += 1
            self.grades[one.relevance] += 1
            if one.relevance > 0 and one.query_id not in relevant:
                relevant.add(one.query_id)
                self.judged_by_split[one.split] += 1
        lacking_ids = asked.lacking(self.queries.ids), judged.lacking(self.documents.ids)
        for reason, lacking in zip(MISSING, lacking_ids, strict=True):
            if len(lacking):
                good = (one for one in source.read_qrels() if isinstance(one, Judgement))
                first = next(islice(good, int(lacking[0]), None))
                name = first.query_id if reason == MISSING[0] else first.doc_id
                self.bad[reason] += len(lacking)
                shown = Bad(reason, first.place, LISTED if is_list(name) else "", name)
                self.examples.setdefault(reason, shown.example())

    def _good(self, records: Iterable[Any]) -> Iterable[Any]:
        for record in records:
            if isinstance(record, Bad):
                self.bad[record.reason] += 1
                self.examples.setdefault(record.reason, record.example())
            else:
                yield record

    @property
    def relevant(self) -> float:
        """Relevant judgements of a query that has one, in the mean."""
        right = sum(count for grade, count in self.grades.items() if grade > 0)
        return right / max(1, self.judged_by_split.total())
