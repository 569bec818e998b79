"""Train a cross encoder on groups: each query with each of its candidates (paper 004, Eq. 7)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from components.chunked import in_chunks
from components.cross_encoder import CrossEncoder
from components.groups import Groups
from components.objectives.terms import Sum, Term, evaluate
from components.scores import Scores
from components.text import Batch, TokenStore, pairs


class RankerBatch(NamedTuple):
    """Some groups, their pairs one after another."""

    pairs: Batch
    at: Tensor
    """(Q, C) where each candidate stands among the pairs; 0 for padding."""
    target: Tensor
    where: Tensor
    teacher: Tensor | None


class Ranker(nn.Module):
    """The objective: scores of pairs under the losses asked for, over each query's own candidates."""

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool
    ) -> None:
        super().__init__()
        if any(term.over != "group" for term in losses):
            raise ValueError("a ranker's losses look over the group; `over: batch` would need every pair of the batch")
        self.model = CrossEncoder.load(model)
        self._from, self._losses, self._piece, self._recompute = model, losses, piece, recompute
        self._groups = Groups(rows, data)
        self._tokens = TokenStore(tokens, model)

    def rows(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def collate(self, rows: list[int]) -> RankerBatch:
        """The batch of some groups."""
        groups = [self._groups[row] for row in rows]
        shape = (len(groups), max(len(group.documents) for group in groups))
        at, target, where = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape, bool)
        teacher = np.zeros(shape, np.float32) if groups[0].teacher is not None else None
        sequences: list[tuple[list[int], list[int]]] = []
        for i, group in enumerate(groups):
            count = len(group.documents)
            at[i, :count] = np.arange(len(sequences), len(sequences) + count)
            target[i, :count], where[i, :count] = group.targets, True
            if teacher is not None:
                teacher[i, :count] = group.teacher
            query = self._tokens.queries[group.query]
            limit = self.model.config.pair_tokens
            documents = (self._tokens.documents[row] for row in group.documents)
            sequences += [self._tokens.template.pair(query, document, limit) for document in documents]
        return RankerBatch(
            pairs=pairs(sequences, self._tokens.template),
            at=torch.from_numpy(at),
            target=torch.from_numpy(target),
            where=torch.from_numpy(where),
            teacher=torch.from_numpy(teacher) if teacher is not None else None,
        )

    def encode(self, batch: RankerBatch) -> Tensor:
        """(N,) scores of all pairs."""
        return in_chunks(self.model, batch.pairs, tokens=self._piece, recompute=self._recompute)

    def terms(self, representations: Tensor, batch: RankerBatch) -> dict[str, Sum]:
        """The losses over each group."""
        return evaluate(self._losses, {"group": self._scores(representations, batch)})

    def judge(self, representations: Tensor, batch: RankerBatch) -> list[tuple[Tensor, Tensor]]:
        """Scores and targets of each query's own candidates."""
        scores = self._scores(representations, batch)
        return [(scores.student[i][w], scores.target[i][w]) for i, w in enumerate(scores.where)]

    def save(self, folder: Path) -> None:
        """Write the ranker."""
        self.model.save(folder, self._from)

    @staticmethod
    def _scores(representations: Tensor, batch: RankerBatch) -> Scores:
        return Scores(student=representations[batch.at], target=batch.target, where=batch.where, teacher=batch.teacher)


Objective = Ranker
