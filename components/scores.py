"""`Scores`, the only argument that the training loop passes to a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Scores of the rows against additional texts, for example the remaining queries of the batch."""

    scores: Tensor
    """Scores of rows and texts: (Q, N)."""
    where: Tensor
    """Mask of the pairs that count: (Q, N), bool."""


class Blocks(dict[str, Block]):
    """Blocks that are computed when a loss first reads them. Unused blocks cost nothing.

    The computation may gather from all workers, so all workers must read the same blocks in the same order. Losses
    comply if their choice of blocks depends on their options only, and never on values.
    """

    def __init__(self, make: dict[str, Callable[[], Block]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Block:
        self[name] = self._make[name]()
        return self[name]


@dataclass(frozen=True)
class Scores:
    """Scores of Q queries (rows) and C candidates (columns). Rows are this worker's. Columns may come from all workers.

    The objective decides whether the candidates are a query's own group (AR2, a ranker) or the whole batch (DPR). A
    loss sees no difference.
    """

    student: Tensor
    """Scores of the model in training, before any temperature: (Q, C)."""
    target: Tensor
    """Relevance: (Q, C). 1 for a positive and 0 for a negative, or soft labels. Rows need not sum to 1."""
    where: Tensor
    """Mask of the pairs that count: (Q, C), bool. False for padding, duplicates, and known positives of the query that
    are not targets of this row."""
    teacher: Tensor | None = None
    """Scores of a frozen teacher: (Q, C). If None, there is no teacher."""
    update: int = 0
    """Number of updates before this one, for losses whose parameters depend on it."""
    others: Mapping[str, Block] = field(default_factory=dict)
    """Additional blocks by name, for same-tower negatives and the direction from document to query. A row's document is
    its candidate with the highest target.

    - `query-query`: the row's query against the queries of the remaining rows
    - `document-query`: the row's document against the queries of the remaining rows
    - `document-document`: the row's document against the documents of the remaining rows
    - `document-candidate`: the row's document against all candidates of the batch that the row does not target
    - `document-mined`: as `document-candidate`, but only candidates that are a negative in some group
    """

    def taught(self, loss: str) -> Tensor:
        """Return the teacher's scores: (Q, C). Raise ValueError, naming the loss, if there is no teacher."""
        if self.teacher is None:
            raise ValueError(
                f"{loss} needs a teacher's scores of each group (`over: group`). Let a ranker score the groups, or "
                "take the scores of the collection's source (`given: scores`)."
            )
        return self.teacher

    def positives(self) -> Scores:
        """Return the same scores with a mask that keeps only each row's positives."""
        return replace(self, where=self.where & (self.target > 0))

    def joined(self, *names: str) -> Scores:
        """Append blocks as additional negative candidates, so that they share the denominator."""
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
        """Return, for each row, the scores and the targets of the pairs that count."""
        return [(self.student[i][where], self.target[i][where]) for i, where in enumerate(self.where)]

    def _block(self, name: str) -> Block:
        try:
            return self.others[name]
        except KeyError:
            raise ValueError(
                f"This loss needs {name} scores, and its view has none. Use it on a retriever's batch (`over: batch`)."
            ) from None
