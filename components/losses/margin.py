"""Losses on margins. A margin is the difference between the scores of two candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


def hinge(scores: Scores, *, margin: float = 1.0) -> Tensor:
    """Penalise positives that score less than `margin` above a negative: (Q,). Source: RepBERT (Zhan et al., 2020).

    `1/n sum_ij max(0, margin - (s_i - s_j))` over positives i and negatives j among the n candidates that count, as in
    PyTorch's `MultiLabelMarginLoss`. RepBERT uses it `over: batch`. There is no temperature, because it would only
    change the margin. A row without a positive or without a negative has loss 0.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> hinge(Scores(torch.tensor([[2.0, 1.5, 0.0]]), target, where))  # (1/2 + 0) / 3
    tensor([0.1667])
    """
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    student = scores.student.masked_fill(~scores.where, 0.0)
    pairs = positive.unsqueeze(-1) & negative.unsqueeze(-2)
    lacking = (margin - student.unsqueeze(-1) + student.unsqueeze(-2)).relu().masked_fill(~pairs, 0.0)
    return lacking.sum((-2, -1)) / scores.where.sum(-1).clamp_min(1)


@needs(teacher=True)
def mean_squared(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Compute MarginMSE (Q,): the squared error between margins of the student and the teacher.

    `((s+ - s-) - (t+ - t-))^2`, averaged over all pairs of a positive and a negative of a row (Hofstätter et al.,
    2020). Without such a pair the loss is 0. A constant between the student's and the teacher's scores does not matter.
    A factor does: correct it with the temperatures.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> mean_squared(Scores(torch.tensor([[7.0, 5.0]]), target, where, teacher=torch.tensor([[4.0, 1.0]])))  # (2 - 3)^2
    tensor([1.])
    """
    teacher = scores.taught("margin.mean_squared")
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    difference = (scores.student / temperature - teacher / teacher_temperature).masked_fill(~scores.where, 0.0)
    pairs = positive.unsqueeze(-1) & negative.unsqueeze(-2)
    squared = (difference.unsqueeze(-1) - difference.unsqueeze(-2)).square().masked_fill(~pairs, 0.0)
    return squared.sum((-2, -1)) / pairs.sum((-2, -1)).clamp_min(1)
