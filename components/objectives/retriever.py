"""Train a dual encoder on groups: over each query's own candidates, or over the whole batch of all workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from components.chunked import in_chunks
from components.dual_encoder import DualEncoder
from components.floor import Products
from components.gather import gather, most
from components.groups import Group, Groups, positives
from components.objectives.terms import Sum, Term, evaluate
from components.scores import Scores
from components.text import Batch, TokenStore


class RetrieverBatch(NamedTuple):
    """Some groups: each query once, each distinct document once."""

    queries: Batch
    documents: Batch
    keys: Tensor
    """(U,) which text each document is: documents with the same text share a key."""
    columns: Tensor
    """(Q, C) where each candidate stands among the documents."""
    target: Tensor
    """(Q, C)."""
    where: Tensor
    """(Q, C) False for padding and for a text that the group has already."""
    known: Tensor
    """(Q, P) keys of every relevant document of the query, padded with -1."""
    teacher: Tensor | None


class Retriever(nn.Module):
    """The objective: inner products of queries and documents under the losses asked for."""

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool
    ) -> None:
        super().__init__()
        self.model = DualEncoder.load(model)
        self._products = Products(self.model.tower("document"))
        self._from, self._losses, self._piece, self._recompute = model, losses, piece, recompute
        self._groups, self._positives = Groups(rows, data), positives(data)
        self._tokens = TokenStore(tokens, model)
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r")

    def rows(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def collate(self, rows: list[int]) -> RetrieverBatch:
        """The batch of some groups."""
        groups = [self._groups[row] for row in rows]
        keys, first, columns = np.unique(
            self._same[np.concatenate([group.documents for group in groups])], return_index=True, return_inverse=True
        )
        documents = np.concatenate([group.documents for group in groups])[first]
        width = max(len(group.documents) for group in groups)
        shape = (len(groups), width)
        at, target, where = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape, bool)
        teacher = np.zeros(shape, np.float32) if groups[0].teacher is not None else None
        start = 0
        for i, group in enumerate(groups):
            count = len(group.documents)
            own = columns[start : start + count]
            start += count
            at[i, :count], target[i, :count] = own, group.targets
            where[i, np.unique(own, return_index=True)[1]] = True
            if teacher is not None:
                teacher[i, :count] = group.teacher
        queries = np.asarray([group.query for group in groups])
        limits, template = self.model.config, self._tokens.template
        return RetrieverBatch(
            queries=template.texts(self._tokens.queries, queries, limits.query_tokens),
            documents=template.texts(self._tokens.documents, documents, limits.document_tokens),
            keys=torch.from_numpy(keys.astype(np.int64)),
            columns=torch.from_numpy(at),
            target=torch.from_numpy(target),
            where=torch.from_numpy(where),
            known=torch.from_numpy(self._known(groups)),
            teacher=torch.from_numpy(teacher) if teacher is not None else None,
        )

    def _known(self, groups: list[Group]) -> np.ndarray:
        none = np.empty(0, np.int64)
        found = [self._same[self._positives.get(group.query, none)] for group in groups]
        known = np.full((len(groups), max(1, max(map(len, found)))), -1, np.int64)
        for row, keys in enumerate(found):
            known[row, : len(keys)] = keys
        return known

    def operations(self, batch: RetrieverBatch) -> float:
        """Of encoding all queries and documents."""
        lengths = torch.cat([batch.queries.mask.sum(-1), batch.documents.mask.sum(-1)])
        return self._products.operations(lengths.numpy())

    def rate(self, *, device: str, precision: str) -> float:
        """Of a tower's products."""
        return self._products.rate(tokens=self._piece, device=device, precision=precision)

    def encode(self, batch: RetrieverBatch) -> tuple[Tensor, Tensor]:
        """(Q, d) and (U, d) vectors."""

        def vectors(side: Any, texts: Batch) -> Tensor:
            return in_chunks(lambda b: self.model(b, side), texts, tokens=self._piece, recompute=self._recompute)

        return vectors("query", batch.queries), vectors("document", batch.documents)

    def terms(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> dict[str, Sum]:
        """The losses over the group, the batch, or both, as each asks."""
        views = {"group": group_scores, "batch": batch_scores}
        wanted = {term.over for term in self._losses}
        return evaluate(self._losses, {over: views[over](*representations, batch) for over in sorted(wanted)})

    def judge(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> list[tuple[Tensor, Tensor]]:
        """Scores and targets of each query's own candidates."""
        scores = group_scores(*representations, batch)
        return [(scores.student[i][w], scores.target[i][w]) for i, w in enumerate(scores.where)]

    def save(self, folder: Path) -> None:
        """Write the retriever."""
        self.model.save(folder, self._from)


def group_scores(queries: Tensor, documents: Tensor, batch: RetrieverBatch) -> Scores:
    """Each query against its own candidates."""
    student = torch.einsum("qd,qcd->qc", queries, documents[batch.columns])
    return Scores(student=student, target=batch.target, where=batch.where, teacher=batch.teacher)


def batch_scores(queries: Tensor, documents: Tensor, batch: RetrieverBatch) -> Scores:
    """Each query against every document of the batch, of every worker: `(Q, all documents)`.

    A text that several workers hold counts once, and a document that is relevant to the query without being the
    target of its row does not count at all.
    """
    rows = most(len(documents), documents.device)
    documents = gather(documents, rows=rows)
    keys = gather(batch.keys + 1, rows=rows) - 1  # padding becomes -1
    order = torch.argsort(keys, stable=True)
    ordered = keys[order]
    first = torch.ones_like(keys, dtype=torch.bool)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    counts = first & (keys >= 0)

    student = queries @ documents.T
    own = torch.where(batch.where, batch.keys[batch.columns], -2)
    target = _spread(own, batch.target, order, ordered)
    known = _spread(
        batch.known.where(batch.known >= 0, -2), torch.ones_like(batch.known, dtype=target.dtype), order, ordered
    )
    return Scores(student=student, target=target, where=counts & ~((known > 0) & (target <= 0)))


def _spread(wanted: Tensor, values: Tensor, order: Tensor, ordered: Tensor) -> Tensor:
    """(Q, N) values put at the first column that holds each wanted key; keys that no column holds are left out."""
    place = torch.searchsorted(ordered, wanted).clamp_max(len(ordered) - 1)
    found = ordered[place] == wanted
    spread = values.new_zeros((len(wanted), len(ordered)))
    return spread.scatter_add_(1, order[place], values * found)


Objective = Retriever
