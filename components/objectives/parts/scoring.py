"""Batches of a retriever, and their scores: within each group, and over the batch of all workers."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sparring.components.compute.gather import gather, max_over_workers, rank
from sparring.components.data.batches import Batch
from sparring.components.models.text_encoder import Similarity
from sparring.components.scores import Block, Blocks, Scores
from sparring.components.training.terms import Duplicates


class RetrieverBatch(NamedTuple):
    """Some groups: each query once, each distinct document once."""

    queries: Batch
    documents: Batch
    query_keys: Tensor
    """(Q,) which text each query is: queries with the same text share a key."""
    document_keys: Tensor
    """(U,) which text each document is, likewise."""
    columns: Tensor
    """(Q, C) where each candidate stands among the documents."""
    target: Tensor
    """(Q, C)."""
    where: Tensor
    """(Q, C) False for padding and for a text that the group has already."""
    relevant_keys: Tensor
    """(Q, P) keys of every relevant document of the query's text, padded with -1."""
    teacher: Tensor | None


PRODUCTS = Similarity()
"""Inner products of vectors."""


def group_scores(queries: Tensor, documents: Tensor, batch: RetrieverBatch, by: Similarity = PRODUCTS) -> Scores:
    """Score each query against its own candidates. Relevant documents that are no target do not count."""
    student = by.score_lists(queries, documents[batch.columns])
    relevant = (_candidate_keys(batch).unsqueeze(-1) == batch.relevant_keys.unsqueeze(1)).any(-1)
    where = batch.where & ~(relevant & (batch.target <= 0))
    return Scores(student=student, target=batch.target, where=where, teacher=batch.teacher)


def batch_scores(
    queries: Tensor,
    documents: Tensor,
    batch: RetrieverBatch,
    duplicates: Duplicates = "mask",
    by: Similarity = PRODUCTS,
) -> Scores:
    """Score each query against every document of the batches of all workers: `(Q, all documents)`.

    A text that several rows hold is one column. With duplicates, each row has its own column, which alone is its
    target. A document that is relevant to a row's query, but not the row's target, does not count. The blocks follow
    the same rule: a text is one column. It does not count if a row that holds it is the row itself, has the same text,
    or is relevant to it.
    """
    whole = _whole(documents, batch)
    columns = (_of_texts if duplicates == "mask" else _of_candidates)(whole, batch)
    targeted = _targeted(batch)
    mine = documents[targeted.clamp_min(0)]

    @cache
    def all_rows() -> _Rows:
        return _rows(queries, whole, targeted, batch)

    def block(row_vectors: Tensor, column_vectors: Tensor, texts: _Texts, same: Tensor, relevant: Tensor) -> Block:
        if duplicates == "mask":
            where = texts.real & texts.first & ~texts.anywhere(all_rows().itself | same | relevant)
        else:
            where = texts.real & ~(all_rows().itself | (relevant & ~same))
        return Block(by.score(row_vectors, column_vectors), where)

    # In these three a column is another row, and two rows are alike if they share what makes one a positive of the
    # other: between queries the query, else the query or the document.

    def query_query() -> Block:
        rows = all_rows()
        return block(queries, rows.queries, rows.query_texts, rows.same_query, torch.zeros_like(rows.itself))

    def document_query() -> Block:
        rows = all_rows()
        return block(mine, rows.queries, rows.query_texts, rows.same_query | rows.same_document, rows.wants_mine)

    def document_document() -> Block:
        rows = all_rows()
        return block(mine, rows.documents, rows.document_texts, rows.same_query | rows.same_document, rows.wanted)

    def document_candidate() -> Block:
        return Block(by.score(mine, columns.vectors), columns.where & (columns.target <= 0))

    def document_mined() -> Block:
        keys = _candidate_keys(batch).where(batch.target <= 0, -1).flatten()
        negatives = _gather(keys, max_over_workers(len(keys), keys.device))
        mined = torch.isin(whole.keys, negatives[negatives >= 0]) if duplicates == "mask" else negatives >= 0
        return Block(by.score(mine, columns.vectors), columns.where & (columns.target <= 0) & mined)

    blocks = Blocks(
        {
            "query-query": query_query,
            "document-query": document_query,
            "document-document": document_document,
            "document-candidate": document_candidate,
            "document-mined": document_mined,
        }
    )
    student = by.score(queries, columns.vectors)
    return Scores(student=student, target=columns.target, where=columns.where, others=blocks)


class _Texts:
    """Texts of columns, by key. A text may have several columns. Padding has the key -1 and is no text."""

    def __init__(self, keys: Tensor) -> None:
        self._order = torch.argsort(keys, stable=True)
        self._sorted = keys[self._order]
        self._leader = self._order[torch.searchsorted(self._sorted, keys)]
        self.keys = keys
        self.real = keys >= 0
        self.first = self._leader == torch.arange(len(keys), device=keys.device)
        """(N,) whether a column is the first of its text."""

    def spread(self, wanted: Tensor, values: Tensor) -> Tensor:
        """Put values into every column that holds the wanted key: (R, N). Ignore keys that no column holds."""
        place = torch.searchsorted(self._sorted, wanted).clamp_max(len(self._sorted) - 1)
        present = (self._sorted[place] == wanted) & (wanted >= 0)
        spread = values.new_zeros((len(wanted), len(self._sorted)))
        return spread.scatter_add_(1, self._order[place], values * present)[:, self._leader]

    def hold(self, wanted: Tensor) -> Tensor:
        """Check (R, N) whether a column's text is among the keys that a row wants."""
        return self.spread(wanted, torch.ones_like(wanted)) > 0

    def anywhere(self, where: Tensor) -> Tensor:
        """Check (R, N) whether any column of the same text is True."""
        return torch.zeros_like(where, dtype=torch.int32).index_add_(1, self._leader, where.int())[:, self._leader] > 0


class _Whole(NamedTuple):
    """The documents of all workers, one worker's after another's."""

    vectors: Tensor
    """(N, ...) representations."""
    keys: Tensor
    start: int
    """Position of this worker's first document."""


def _whole(documents: Tensor, batch: RetrieverBatch) -> _Whole:
    rows = max_over_workers(len(documents), documents.device)
    return _Whole(gather(documents, rows=rows), _gather(batch.document_keys, rows), rank() * rows)


class _Columns(NamedTuple):
    """The documents that rows are scored against, with their targets."""

    vectors: Tensor
    target: Tensor
    where: Tensor


def _of_texts(whole: _Whole, batch: RetrieverBatch) -> _Columns:
    """Make a column for each text."""
    texts = _Texts(whole.keys)
    target = texts.spread(_candidate_keys(batch), batch.target) * texts.first
    where = texts.real & texts.first & ~(texts.hold(batch.relevant_keys) & (target <= 0))
    return _Columns(whole.vectors, target, where)


def _of_candidates(whole: _Whole, batch: RetrieverBatch) -> _Columns:
    """Make a column for each candidate of each row."""
    places = (batch.columns + whole.start).where(batch.where, -1).flatten()
    count = max_over_workers(len(places), places.device)
    everywhere = _gather(places, count)
    texts = _Texts(_at(whole.keys, everywhere))
    positions = rank() * count + torch.arange(len(places), device=places.device).view_as(batch.columns)
    repeated = texts.spread(_candidate_keys(batch), batch.target)
    target = torch.zeros_like(repeated).scatter_(1, positions, batch.target * batch.where)
    where = texts.real & ~(texts.hold(batch.relevant_keys) & (repeated <= 0))
    return _Columns(whole.vectors[everywhere.clamp_min(0)], target, where)


class _Rows(NamedTuple):
    """This worker's rows against the rows of all workers, one worker's after another's: `(Q, N)`."""

    queries: Tensor
    """(N, d)."""
    documents: Tensor
    """(N, d) each row's own: the one that it targets most."""
    query_texts: _Texts
    document_texts: _Texts
    itself: Tensor
    """The other is the row."""
    same_query: Tensor
    same_document: Tensor
    wanted: Tensor
    """The other's document is relevant to the row's query."""
    wants_mine: Tensor
    """The row's document is relevant to the other's query."""


def _rows(queries: Tensor, whole: _Whole, targeted: Tensor, batch: RetrieverBatch) -> _Rows:
    count, width = (
        max_over_workers(len(queries), queries.device),
        max_over_workers(batch.relevant_keys.shape[1], queries.device),
    )
    places = _gather((targeted + whole.start).where(targeted >= 0, -1), count)
    targeted_keys = batch.document_keys[targeted.clamp_min(0)].where(targeted >= 0, -1)
    query_texts, document_texts = _Texts(_gather(batch.query_keys, count)), _Texts(_at(whole.keys, places))
    relevant = torch.nn.functional.pad(batch.relevant_keys, (0, width - batch.relevant_keys.shape[1]), value=-1)
    positions = rank() * count + torch.arange(len(queries), device=queries.device)
    return _Rows(
        queries=gather(queries, rows=count),
        documents=whole.vectors[places.clamp_min(0)],
        query_texts=query_texts,
        document_texts=document_texts,
        itself=positions.unsqueeze(1) == torch.arange(len(query_texts.keys), device=queries.device),
        same_query=batch.query_keys.unsqueeze(1) == query_texts.keys,
        same_document=targeted_keys.unsqueeze(1) == document_texts.keys,
        wanted=document_texts.hold(batch.relevant_keys),
        wants_mine=_Texts(targeted_keys).hold(_gather(relevant, count)).T,
    )


def _candidate_keys(batch: RetrieverBatch) -> Tensor:
    """Return (Q, C) keys of each row's candidates, -1 if the candidate does not count."""
    return batch.document_keys[batch.columns].where(batch.where, -1)


def _targeted(batch: RetrieverBatch) -> Tensor:
    """Return (Q,) the position of each row's most targeted document among this worker's, -1 if it has no target."""
    most_targeted = batch.target.masked_fill(~batch.where, 0.0).max(-1, keepdim=True)
    return batch.columns.gather(1, most_targeted.indices).where(most_targeted.values > 0, -1).squeeze(1)


def _gather(numbers: Tensor, rows: int) -> Tensor:
    """Gather keys or places of all workers. Missing values and the padding of workers with fewer rows are -1."""
    return gather(numbers + 1, rows=rows) - 1


def _at(keys: Tensor, places: Tensor) -> Tensor:
    """Return (N,) keys at places. The key of place -1 is -1."""
    return keys[places.clamp_min(0)].where(places >= 0, -1)
