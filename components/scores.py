"""Scores: all that a loss sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Scores of rows against further items, such as other queries: `(Q, N)`, with its own mask."""

    scores: Tensor
    where: Tensor
    """(Q, N) bool: which pairs count."""


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
    others: dict[str, Block] = field(default_factory=dict)
    """Named blocks for same-tower and reverse terms."""
