"""A retriever's batches, and their scores within each group or over the batches of all workers."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sparring.components.compute.gather import first_row, gather, of_workers
from sparring.components.data.batches import Batch
from sparring.components.models.text_encoder import Similarity
from sparring.components.scores import Block, Blocks, Scores
from sparring.components.training.terms import Duplicates


class RetrieverBatch(NamedTuple):
    """Some groups, as their queries and their distinct documents."""

    queries: Batch
    documents: Batch
    query_keys: Tensor
    """Key of each query's text: (Q,). Queries with equal text share a key."""
    document_keys: Tensor
    """Key of each document's text: (U,)."""
    columns: Tensor
    """Position of each candidate among the documents: (Q, C)."""
    target: Tensor
    """Target of each candidate: (Q, C)."""
    where: Tensor
    """Mask of the candidates that count: (Q, C). False for padding and for repeated texts of a group."""
    relevant_keys: Tensor
    """Keys of all documents that are relevant to the query's text: (Q, P), padded with -1."""
    teacher: Tensor | None


PRODUCTS = Similarity()
"""Inner products of vectors."""


def group_scores(queries: Tensor, documents: Tensor, batch: RetrieverBatch, by: Similarity = PRODUCTS) -> Scores:
    """Score each query against its own candidates. Relevant documents that are not targets do not count."""
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
    """Score each query against the documents in the batches of all workers: `(Q, all documents)`.

    With `duplicates="mask"`, a text counts as a single column, even if rows share it. With `duplicates="count"`, each
    candidate of each row has its own column, and a row's targets are only in its own columns. A document that is
    relevant to a row's query without being the row's target does not count.

    In a block of documents, a text does not count for a row if it occurs in the row itself, in a row with the same
    query or document, or in a row whose document is relevant to the row's query. Blocks of queries follow the same
    rule.
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

    # In the next three blocks a column is a row of some worker. Two rows are duplicates if they share the query, or,
    # in the blocks with documents, if they share the query or the document.

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
        negatives = gather(keys, of_workers(len(keys)))
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
    """Texts of columns, by key. Columns with equal text share a key. Padding has the key -1."""

    def __init__(self, keys: Tensor) -> None:
        self._order = torch.argsort(keys, stable=True)
        self._sorted = keys[self._order]
        self._leader = self._order[torch.searchsorted(self._sorted, keys)]
        self.keys = keys
        self.real = keys >= 0
        self.first = self._leader == torch.arange(len(keys), device=keys.device)
        """True at the first column of each text: (N,)."""

    def spread(self, wanted: Tensor, values: Tensor) -> Tensor:
        """Put values into every column that holds the wanted key: (R, N). Keys without a column are ignored."""
        place = torch.searchsorted(self._sorted, wanted).clamp_max(len(self._sorted) - 1)
        present = (self._sorted[place] == wanted) & (wanted >= 0)
        spread = values.new_zeros((len(wanted), len(self._sorted)))
        return spread.scatter_add_(1, self._order[place], values * present)[:, self._leader]

    def hold(self, wanted: Tensor) -> Tensor:
        """Mark, for each row, the columns whose text is among the wanted keys: (R, N)."""
        return self.spread(wanted, torch.ones_like(wanted)) > 0

    def anywhere(self, where: Tensor) -> Tensor:
        """Mark all columns of a text if any of its columns is True: (R, N)."""
        return torch.zeros_like(where, dtype=torch.int32).index_add_(1, self._leader, where.int())[:, self._leader] > 0


class _Whole(NamedTuple):
    """The documents of all workers, in the order of the workers."""

    vectors: Tensor
    """Representations: (N, ...)."""
    keys: Tensor
    start: int
    """Position of this worker's first document."""


def _whole(documents: Tensor, batch: RetrieverBatch) -> _Whole:
    counts = of_workers(len(documents))
    return _Whole(gather(documents, counts), gather(batch.document_keys, counts), first_row(counts))


class _Columns(NamedTuple):
    """The documents that rows are scored against, with their targets."""

    vectors: Tensor
    target: Tensor
    where: Tensor


def _of_texts(whole: _Whole, batch: RetrieverBatch) -> _Columns:
    """Use the first column of each text, and mask its repetitions."""
    texts = _Texts(whole.keys)
    target = texts.spread(_candidate_keys(batch), batch.target) * texts.first
    where = texts.real & texts.first & ~(texts.hold(batch.relevant_keys) & (target <= 0))
    return _Columns(whole.vectors, target, where)


def _of_candidates(whole: _Whole, batch: RetrieverBatch) -> _Columns:
    """Make a column for each candidate of each row."""
    places = (batch.columns + whole.start).where(batch.where, -1).flatten()
    counts = of_workers(len(places))
    everywhere = gather(places, counts)
    texts = _Texts(_at(whole.keys, everywhere))
    positions = first_row(counts) + torch.arange(len(places), device=places.device).view_as(batch.columns)
    repeated = texts.spread(_candidate_keys(batch), batch.target)
    target = torch.zeros_like(repeated).scatter_(1, positions, batch.target * batch.where)
    where = texts.real & ~(texts.hold(batch.relevant_keys) & (repeated <= 0))
    return _Columns(whole.vectors[everywhere.clamp_min(0)], target, where)


class _Rows(NamedTuple):
    """Relations of this worker's Q rows to the N rows of all workers. The masks are `(Q, N)`."""

    queries: Tensor
    """Queries of all rows: (N, d)."""
    documents: Tensor
    """Document with the highest target of each row: (N, d)."""
    query_texts: _Texts
    document_texts: _Texts
    itself: Tensor
    """True if the column is the row itself."""
    same_query: Tensor
    same_document: Tensor
    wanted: Tensor
    """True if the column's document is relevant to the row's query."""
    wants_mine: Tensor
    """True if the row's document is relevant to the column's query."""


def _rows(queries: Tensor, whole: _Whole, targeted: Tensor, batch: RetrieverBatch) -> _Rows:
    counts, width = of_workers(len(queries)), max(of_workers(batch.relevant_keys.shape[1]))
    places = gather((targeted + whole.start).where(targeted >= 0, -1), counts)
    targeted_keys = batch.document_keys[targeted.clamp_min(0)].where(targeted >= 0, -1)
    query_texts, document_texts = _Texts(gather(batch.query_keys, counts)), _Texts(_at(whole.keys, places))
    relevant = torch.nn.functional.pad(batch.relevant_keys, (0, width - batch.relevant_keys.shape[1]), value=-1)
    positions = first_row(counts) + torch.arange(len(queries), device=queries.device)
    return _Rows(
        queries=gather(queries, counts),
        documents=whole.vectors[places.clamp_min(0)],
        query_texts=query_texts,
        document_texts=document_texts,
        itself=positions.unsqueeze(1) == torch.arange(len(query_texts.keys), device=queries.device),
        same_query=batch.query_keys.unsqueeze(1) == query_texts.keys,
        same_document=targeted_keys.unsqueeze(1) == document_texts.keys,
        wanted=document_texts.hold(batch.relevant_keys),
        wants_mine=_Texts(targeted_keys).hold(gather(relevant, counts)).T,
    )


def _candidate_keys(batch: RetrieverBatch) -> Tensor:
    """Return the keys of each row's candidates: (Q, C). -1 if the candidate does not count."""
    return batch.document_keys[batch.columns].where(batch.where, -1)


def _targeted(batch: RetrieverBatch) -> Tensor:
    """Return the position of each row's document with the highest target: (Q,). -1 if the row has no target."""
    most_targeted = batch.target.masked_fill(~batch.where, 0.0).max(-1, keepdim=True)
    return batch.columns.gather(1, most_targeted.indices).where(most_targeted.values > 0, -1).squeeze(1)


def _at(keys: Tensor, places: Tensor) -> Tensor:
    """Return the keys at places: (N,). The key of place -1 is -1."""
    return keys[places.clamp_min(0)].where(places >= 0, -1)
