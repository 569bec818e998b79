"""The queries of a collection's splits after `hold_out` and `sample`, and the documents that `only_judged` keeps."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import nsmallest
from typing import Any

import numpy as np

from sparring.components.config import UserError, did_you_mean, listing
from sparring.components.rng import keyed_int, keyed_sample
from sparring.components.sources.base import Source
from sparring.components.sources.records import Bad, Document, Judgement, Query


class Drawn:
    """A sample of a source's records. All bad records are passed on, so that they are reported."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.read = 0
        """Number of the source's documents that were read, whether kept or not."""

    def documents(self) -> Iterator[Document | Bad]:
        """Yield the kept documents: all, or with `only_judged` those that a judgement of a kept query names."""
        if not self.source.only_judged:
            return self.source.read_documents()
        judged = self.of(self.source.read_qrels())
        return self._judged({record.doc_id for record in judged if isinstance(record, Judgement)})

    def _judged(self, names: set[str]) -> Iterator[Document | Bad]:
        for document in self.source.read_documents():
            self.read += not isinstance(document, Bad)
            if isinstance(document, Bad) or document.doc_id in names:
                yield document

    def of(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the records of kept queries, each with its split.

        Raise UserError if a held-out split exists already, if it is taken from a split without queries, and for an
        empty sample.
        """
        kept = self._kept
        return (
            record
            for record in self._dealt(records)
            if isinstance(record, Bad) or record.split not in kept or record.query_id in kept[record.split]
        )

    def _dealt(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield queries, judgements or groups, with held-out splits where they apply."""
        drawn = self.source.hold_out
        for record in records:
            if isinstance(record, Bad) or not drawn:
                yield record
                continue
            if record.split in drawn:
                problem = f"the collection already has a split {record.split!r} ({record.place})"
                raise UserError(f"data.hold_out: {problem}. Use another name for yours.", code="unusable-name")
            by = self._first.get(record.query_id, record.query_id)
            splits = (name for name, part in drawn.items() if part.of == record.split and part.draws(name, by))
            yield record._replace(split=next(splits, record.split))

    @cached_property
    def _first(self) -> dict[str, str]:
        """The first id among queries with equal text, by the id of each such query. Case and white space are ignored.

        Queries with equal text go to the same split. Otherwise a model would be evaluated on its training questions.
        """
        splits: set[str] = set()
        hashes = np.sort(np.fromiter((hash(text) for _, text in self._texts(splits)), dtype=np.int64))
        for name, hold_out in self.source.hold_out.items():
            if splits and hold_out.of not in splits:
                accepted = listing(sorted(splits))
                raise UserError(
                    f"data.hold_out.{name}.of: there are no queries in {hold_out.of!r}. Use one of these: {accepted}.",
                    code="unknown-split",
                )
        shared = frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        ids: dict[str, list[str]] = {}
        for query_id, text in self._texts(splits) if shared else ():
            if hash(text) in shared:
                ids.setdefault(text, []).append(query_id)
        return {query_id: min(alike) for alike in ids.values() for query_id in alike}

    def _texts(self, splits: set[str]) -> Iterator[tuple[str, str]]:
        """Yield ids and texts of all queries, and add their splits to `splits`."""
        for query in self.source.read_queries():
            if isinstance(query, Query):
                splits.add(query.split)
                yield query.query_id, " ".join(query.text.lower().split())

    @cached_property
    def _kept(self) -> dict[str, set[str]]:
        """The kept queries of each sampled split."""
        names: dict[str, list[str]] = {split: [] for split in self.source.sample}
        splits: set[str] = set()
        for record in self._dealt(self.source.read_queries()) if names else ():
            if isinstance(record, Query):
                splits.add(record.split)
                if record.split in names:
                    names[record.split].append(record.query_id)
        for split, of_split in names.items():
            if not of_split:
                meant = f"Use one of these: {listing(sorted(splits))}{did_you_mean(split, splits)}"
                raise UserError(f"data.sample: there are no queries in {split!r}. {meant}", code="unknown-split")
        return {split: self._sample(split, of_split) for split, of_split in names.items()}

    def _sample(self, split: str, queries: list[str]) -> set[str]:
        """Sample the queries of a split."""
        wanted = self.source.sample[split]
        if isinstance(wanted, int):
            return keyed_sample(queries, wanted, "sample")
        judged = self._dealt(self.source.read_qrels())
        relevant: dict[str, str] = {}
        for record in judged:
            if isinstance(record, Judgement) and record.split == split and record.relevance > 0:
                relevant.setdefault(record.query_id, record.doc_id)
        drawn = {document: keyed_int("sample", document) for document in relevant.values()}
        of_document = [query for query in queries if query in relevant]
        return set(nsmallest(wanted.queries, of_document, key=lambda query: (drawn[relevant[query]], query)))
