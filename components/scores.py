"""Scores: all that a loss sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Scores of rows against further items, such as other queries: `(Q, N)`, with its own mask."""

    scores: Tensor
    where: Tensor
    """(Q, N) bool: which pairs count."""


class Blocks(dict[str, Block]):
    """Blocks that are made when a loss first asks for them: what no loss looks at costs nothing.

    Making one may gather from all workers, so every worker must ask for the same ones in the same order; losses do,
    as what they ask for depends on their options and never on values.
    """

    def __init__(self, make: dict[str, Callable[[], Block]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Block:
        self[name] = self._make[name]()
        return self[name]


@dataclass(frozen=True)
class Scores:
    """Q queries by C candidates. Rows are this worker's queries; columns may come from every worker.

    Whether the candidates are a query's own group (AR2, a ranker) or the whole batch (DPR) is the objective's
    choice; a loss cannot tell.
    """

    student: Tensor
    """(Q, C) scores of the model in training, before any temperature."""
    target: Tensor
    """(Q, C) relevance: 1 for the positive, or a soft label; rows need not sum to 1."""
    where: Tensor
    """(Q, C) bool: which pairs count. Padding, duplicates, and known positives that the row itself does not
    target are False."""
    teacher: Tensor | None = None
    """(Q, C) scores of a frozen teacher, or None."""
    others: Mapping[str, Block] = field(default_factory=dict)
    """Named blocks for same-tower and reverse terms. A row's query against the other rows' queries (`query-query`);
    its document, which is the candidate that it targets most, against the other rows' queries (`document-query`),
    against the other rows' documents (`document-document`), against all candidates of the batch that the row does not
    target, mined ones too (`document-candidate`), and of these against those alone that stand in some group as a
    negative (`document-mined`)."""

    def positives(self) -> Scores:
        """Of the candidates only those that a row targets."""
        return replace(self, where=self.where & (self.target > 0))

    def joined(self, *names: str) -> Scores:
        """The blocks of these names as further candidates, which no row targets: one denominator for all."""
        blocks = [self._block(name) for name in names]
        if not blocks:
            return self
        further = [torch.zeros_like(block.scores, dtype=self.target.dtype) for block in blocks]
        return Scores(
            student=torch.cat([self.student, *(block.scores for block in blocks)], -1),
            target=torch.cat([self.target, *further], -1),
            where=torch.cat([self.where, *(block.where for block in blocks)], -1),
        )

    def _block(self, name: str) -> Block:
        try:
            return self.others[name]
        except KeyError:
            raise ValueError(
                f"there are no {name} scores here: this loss looks over the batch (`over: batch`)"
            ) from None
