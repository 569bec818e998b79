"""AR2's adversarial term: the retriever is paid for negatives that fool the ranker (paper 004, Eq. 8 to 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.masking import LOWEST, softmax

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def expected_reward(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Expectation, under the retriever, of the ranker's log-probability of the positive against one negative.

    `J = sum_i p_theta(d_i- | q, D-) log p_phi(d | q, d, d_i-)` with `p_theta` a softmax over the negatives alone.
    Its gradient is Eq. 10 exactly. Minimising it moves the retriever's probability to the negatives that the ranker
    takes for the answer. The value is never positive. A row without a positive or without a negative has loss 0.
    """
    if scores.teacher is None:
        raise ValueError("expected_reward needs a teacher: score the groups with a ranker first")
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where & positive.any(-1, keepdim=True)
    teacher = scores.teacher / teacher_temperature
    best = teacher.masked_fill(~positive, LOWEST).amax(-1, keepdim=True)
    # log p_phi(d | q, d, d_i) = log sigmoid(z - z_i); softplus keeps it exact where the ranker is sure.
    reward = -_softplus(teacher - best)
    chosen = softmax(scores.student / temperature, negative)
    return (chosen * reward.masked_fill(~negative, 0.0)).sum(-1)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow."""
    return x.clamp_min(0) + (-x.abs()).exp().log1p()
