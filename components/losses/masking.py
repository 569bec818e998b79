"""Softmax over the pairs that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = -1e30
"""Stands for a pair that does not count: finite, so that a row with none gives zeros and not NaN."""


def log_softmax(scores: Tensor, where: Tensor) -> Tensor:
    """(Q, C) log-probabilities over the pairs that count; 0 at those that do not, which also get no gradient."""
    return scores.masked_fill(~where, LOWEST).log_softmax(-1).masked_fill(~where, 0.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow."""
    return x.clamp_min(0) + (-x.abs()).exp().log1p()


def softmax(scores: Tensor, where: Tensor) -> Tensor:
    """(Q, C) probabilities over the pairs that count, 0 at the others."""
    return scores.masked_fill(~where, LOWEST).softmax(-1).masked_fill(~where, 0.0)
