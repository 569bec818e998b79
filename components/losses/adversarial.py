"""AR2's adversarial term: the retriever is paid for negatives that fool the ranker (paper 004, Eq. 8 to 10).

`expected_reward` is the paper's; `released` is what its public code computes instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.masking import LOWEST, log_softmax, softmax, softplus

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def expected_reward(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Expectation, under the retriever, of the ranker's log-probability of the positive against one negative.

    `J = sum_i p_theta(d_i- | q, D-) log p_phi(d | q, d, d_i-)` with `p_theta` a softmax over the negatives alone.
    Its gradient is Eq. 10 exactly. Minimising it moves the retriever's probability to the negatives that the ranker
    takes for the answer. The value is never positive. A row without a positive or without a negative has loss 0.
    """
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where & positive.any(-1, keepdim=True)
    reward = _reward(scores, positive, teacher_temperature)
    chosen = softmax(scores.student / temperature, negative)
    return (chosen * reward.masked_fill(~negative, 0.0)).sum(-1)


def released(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """The term as AR2's public code has it: every candidate weighs alike, the positive among them.

    `sum_i r_i log p_theta(d_i | q, d, D-)` with `r_i = log p_phi(d | q, d, d_i)` and `p_theta` a softmax over the
    whole group. The positive's reward is the constant log 1/2, so where the ranker is sure the term is a cross
    entropy towards the positive; where a negative fools the ranker it draws probability to that negative. The code
    sums it over the 8 questions of a GPU and takes the mean of everything else, so its even mixture is 8 to 1 (a weight
    of 4 beside .5 here; `reduce: sum` sums over the whole batch), and adds 1e-7 to probabilities before a logarithm.
    """
    positive = (scores.target > 0) & scores.where
    counts = scores.where & positive.any(-1, keepdim=True)
    reward = _reward(scores, positive, teacher_temperature).masked_fill(~counts, 0.0)
    return (reward * log_softmax(scores.student / temperature, scores.where)).sum(-1)


def _reward(scores: Scores, positive: Tensor, temperature: float) -> Tensor:
    """(Q, C) the ranker's log-probability of the positive against each candidate alone."""
    if scores.teacher is None:
        raise ValueError("an adversarial term needs a teacher: score the groups with a ranker first")
    teacher = scores.teacher / temperature
    best = teacher.masked_fill(~positive, LOWEST).amax(-1, keepdim=True)
    # log p_phi(d | q, d, d_i) = log sigmoid(z - z_i); softplus keeps it exact where the ranker is sure.
    return -softplus(teacher - best)
