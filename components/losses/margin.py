"""Losses over differences of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def mean_squared(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """MarginMSE: the student's lead of a positive over a negative should be the teacher's (Hofstätter et al. 2020).

    `mean over pairs ((s+ - s-) - (t+ - t-))^2`, over every pair of a positive and a negative that a row has. Only
    margins count: student and teacher may be a constant apart, but not a factor, which is what temperatures are for.
    A row without a pair has loss 0.
    """
    if scores.teacher is None:
        raise ValueError("margin.mean_squared needs a teacher: score the groups with a ranker first")
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    ahead = (scores.student / temperature - scores.teacher / teacher_temperature).masked_fill(~scores.where, 0.0)
    pairs = positive.unsqueeze(-1) & negative.unsqueeze(-2)
    squared = (ahead.unsqueeze(-1) - ahead.unsqueeze(-2)).square().masked_fill(~pairs, 0.0)
    return squared.sum((-2, -1)) / pairs.sum((-2, -1)).clamp_min(1)
