"""IRGAN's two losses on AR2's players, which AR2 is compared with (paper 004, Table 5; Wang et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.masking import softmax, softplus

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def generator(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """The retriever's: minus the expectation, under its distribution, of the ranker's reward `log(1 + e^z)`.

    `-sum_i p_theta(d_i | q) log(1 + exp(z_i))` over all candidates, the positive among them. The expectation is
    exact over the group, so a baseline would change no gradient. Unlike AR2's reward it looks at each document by
    itself: a ranker that gives every document a high score pays for all of them alike.
    """
    if scores.teacher is None:
        raise ValueError("irgan.generator needs a teacher: score the groups with a ranker first")
    reward = softplus(scores.teacher).masked_fill(~scores.where, 0.0)
    return -(softmax(scores.student / temperature, scores.where) * reward).sum(-1)


def discriminator(scores: Scores) -> Tensor:
    """The ranker's: binary cross entropy, the mean over positives and the mean over negatives of a query.

    `-mean log sigmoid(s+) - mean log(1 - sigmoid(s-))`. A side that has no document counts nothing.
    """
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    student = scores.student.masked_fill(~scores.where, 0.0)  # what stands there may be no number
    return _mean(softplus(-student), positive) + _mean(softplus(student), negative)


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return values.masked_fill(~where, 0.0).sum(-1) / where.sum(-1).clamp_min(1)
