"""Losses over margins, which are differences of two candidates' scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def mean_squared(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """(Q,) MarginMSE: squared error of the student's margin of a positive over a negative against the teacher's
    (Hofstätter et al., 2020).

    `((s+ - s-) - (t+ - t-))^2`, averaged over all pairs of a positive and a negative of a row; 0 without a pair.
    Student and teacher may differ by a constant, but not by a factor: temperatures correct that.

    >>> import torch
    >>> from components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> mean_squared(Scores(torch.tensor([[7.0, 5.0]]), target, where, teacher=torch.tensor([[4.0, 1.0]])))  # (2 - 3)^2
    tensor([1.])
    """
    if scores.teacher is None:
        raise ValueError("margin.mean_squared needs a teacher: score the groups with a ranker first")
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    difference = (scores.student / temperature - scores.teacher / teacher_temperature).masked_fill(~scores.where, 0.0)
    pairs = positive.unsqueeze(-1) & negative.unsqueeze(-2)
    squared = (difference.unsqueeze(-1) - difference.unsqueeze(-2)).square().masked_fill(~pairs, 0.0)
    return squared.sum((-2, -1)) / pairs.sum((-2, -1)).clamp_min(1)
