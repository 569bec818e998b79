"""Scores: everything that a loss sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Scores of the rows against further texts, such as the other queries."""

    scores: Tensor
    """(Q, N)."""
    where: Tensor
    """(Q, N) bool: which pairs count."""


class Blocks(dict[str, Block]):
    """Blocks that are computed when a loss first asks for them, so unused ones cost nothing.

    Computing one may gather from all workers, so all workers must ask for the same blocks in the same order. Losses do:
    which blocks they ask for depends on their options, never on values.
    """

    def __init__(self, make: dict[str, Callable[[], Block]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Block:
        self[name] = self._make[name]()
        return self[name]


@dataclass(frozen=True)
class Scores:
    """Scores of Q queries (rows) and C candidates (columns). Rows are this worker's; columns may come from all workers.

    The objective decides whether candidates are a query's own group (AR2, a ranker) or the whole batch (DPR); a loss
    cannot tell.
    """

    student: Tensor
    """(Q, C) scores of the model in training, before any temperature."""
    target: Tensor
    """(Q, C) relevance: 1 for a positive and 0 for a negative, or soft labels; rows need not sum to 1."""
    where: Tensor
    """(Q, C) bool: which pairs count. False for padding, duplicates, and known positives of the query that are not
    targets of this row."""
    teacher: Tensor | None = None
    """(Q, C) scores of a frozen teacher, or None."""
    update: int = 0
    """Updates of the weights before this one, for losses that change with them."""
    others: Mapping[str, Block] = field(default_factory=dict)
    """Further blocks by name, for same-tower negatives and the direction from document to query. A row's document is
    its candidate with the highest target.

    - `query-query`: the row's query against the other rows' queries
    - `document-query`: its document against the other rows' queries
    - `document-document`: its document against the other rows' documents
    - `document-candidate`: its document against all candidates of the batch that the row does not target
    - `document-mined`: its document against those of these that are a negative in some group
    """

    def taught(self, loss: str) -> Tensor:
        """(Q, C) the teacher's scores; ValueError, for a loss that needs them, where there are none."""
        if self.teacher is None:
            raise ValueError(
                f"{loss} needs a teacher's scores of each group (`over: group`): those of a ranker that has scored the "
                "groups, or of the collection's source (`given: scores`)"
            )
        return self.teacher

    def positives(self) -> Scores:
        """The same scores, of which only a row's positives count."""
        return replace(self, where=self.where & (self.target > 0))

    def joined(self, *names: str) -> Scores:
        """The same scores with these blocks as further candidates, all of them negatives: one denominator for all."""
        blocks = [self._block(name) for name in names]
        if not blocks:
            return self
        further = [torch.zeros_like(block.scores, dtype=self.target.dtype) for block in blocks]
        return Scores(
            student=torch.cat([self.student, *(block.scores for block in blocks)], -1),
            target=torch.cat([self.target, *further], -1),
            where=torch.cat([self.where, *(block.where for block in blocks)], -1),
        )

    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """For each row the scores and the targets of the pairs that count."""
        return [(self.student[i][where], self.target[i][where]) for i, where in enumerate(self.where)]

    def _block(self, name: str) -> Block:
        try:
            return self.others[name]
        except KeyError:
            raise ValueError(
                f"there are no {name} scores: this loss needs those of a retriever's batch (`over: batch`)"
            ) from None
