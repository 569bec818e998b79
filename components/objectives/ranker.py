"""Train a cross encoder on groups: each query with each of its candidates (paper 004, Eq. 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from components.chunked import in_chunks
from components.cross_encoder import CrossEncoder
from components.floor import Products
from components.groups import Groups
from components.objectives.terms import Sum, Term, evaluate
from components.scores import Scores
from components.text import Batch, TokenStore


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
        self._products = Products(self.model.backbone)
        self._from, self._losses, self._piece, self._recompute = model, losses, piece, recompute
        self._groups = Groups(rows, data)
        self._tokens = TokenStore(tokens, model)

    def rows(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def collate(self, rows: list[int]) -> RankerBatch:
        """The batch of some groups."""
        groups = [self._groups[row] for row in rows]
        counts = np.asarray([len(group.documents) for group in groups])
        asked = np.repeat([group.query for group in groups], counts)
        read = np.stack([asked, np.concatenate([group.documents for group in groups])], axis=1)
        where = np.arange(counts.max()) < counts[:, None]

        def spread(values: list[Any], kind: type) -> Tensor:
            """(Q, C) the groups' values, 0 where a group is shorter."""
            full: np.ndarray = np.zeros(where.shape, kind)
            full[where] = np.concatenate(values)
            return torch.from_numpy(full)

        return RankerBatch(
            pairs=self._pairs(read),
            at=spread([np.arange(counts.sum())], np.int64),
            target=spread([group.targets for group in groups], np.float32),
            where=torch.from_numpy(where),
            teacher=spread([g.teacher for g in groups], np.float32) if groups[0].teacher is not None else None,
        )

    def _pairs(self, rows: np.ndarray) -> Batch:
        """What the ranker reads of (N, 2) rows of queries and candidates."""
        tokens = self._tokens
        return tokens.template.pairs(tokens.queries, tokens.documents, rows, self.model.config.pair_tokens)

    def operations(self, batch: RankerBatch) -> float:
        """Of scoring all pairs."""
        return self._products.operations(batch.pairs.mask.sum(-1).numpy())

    def rate(self, *, device: str, precision: str) -> float:
        """Of the ranker's products."""
        return self._products.rate(tokens=self._piece, device=device, precision=precision)

    def encode(self, batch: RankerBatch) -> Tensor:
        """(N,) scores of all pairs."""
        return in_chunks(self.model, batch.pairs, tokens=self._piece, recompute=self._recompute)

    def terms(self, representations: Tensor, batch: RankerBatch) -> dict[str, Sum]:
        """The losses over each group."""
        scores = self._scores(representations, batch)
        return evaluate(self._losses, lambda _: scores)

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
