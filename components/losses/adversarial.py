"""AR2's adversarial loss: the retriever learns to prefer negatives that fool the ranker (Zhang et al., 2022, Eq. 8-10).

`expected_reward` is the paper's loss. `released` is the different loss of its public code. The teacher is the ranker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.masking import LOWEST, log_softmax, softmax, softplus
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(teacher=True)
def expected_reward(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Compute AR2's adversarial loss (Q,): the expected log-probability that the ranker gives to the positive.

    `J = sum_i p_theta(d_i- | q, D-) log p_phi(d | q, d, d_i-)`. The retriever's `p_theta` is a softmax over the
    negatives alone. The ranker's `p_phi` compares the positive with one negative. The gradient of J is Eq. 10.
    Minimising J moves the retriever's probability to negatives that the ranker mistakes for the positive. J is at
    most 0. J is 0 for a row without a positive or without negatives.

    In this example the ranker scores the first negative as high as the positive. A retriever that prefers this
    negative has a lower loss:

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> teacher = torch.tensor([[4.0, 4.0, 0.0]])
    >>> expected_reward(Scores(torch.tensor([[0.0, 2.0, 0.0]]), target, where, teacher))
    tensor([-0.6127])
    >>> expected_reward(Scores(torch.tensor([[0.0, 0.0, 2.0]]), target, where, teacher))
    tensor([-0.0986])
    """
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where & positive.any(-1, keepdim=True)
    reward = _reward(scores, positive, teacher_temperature)
    probability = softmax(scores.student / temperature, negative)
    return (probability * reward.masked_fill(~negative, 0.0)).sum(-1)


@needs(teacher=True)
def released(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Compute the adversarial loss of AR2's public code: (Q,).

    `sum_i r_i log p_theta(d_i | q, d, D-)` over all candidates, including the positive. Here
    `r_i = log p_phi(d | q, d, d_i)`, and `p_theta` is a softmax over the whole group. Unlike `expected_reward`, the
    terms are not weighted by the retriever's probability. So this is a cross entropy whose candidates have the weights
    `-r_i`. The positive's weight is always log 2. If the ranker is sure, the weights of negatives are near 0. A
    negative that fools the ranker has a higher weight, and attracts probability too.

    The public code sums this loss over the 8 questions of a GPU, but averages the other losses. Its even mixture is
    therefore 8 to 1: write a weight of 4 here and .5 for the other loss. (`reduce: sum` would sum over the whole
    batch.) The public code also adds 1e-7 to probabilities before it takes logarithms. This function does not.

    The loss is lower if the retriever prefers a candidate that the ranker cannot tell from the positive:

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> teacher = torch.tensor([[4.0, 4.0, 0.0]])
    >>> released(Scores(torch.tensor([[0.0, 2.0, 0.0]]), target, where, teacher))
    tensor([1.7590])
    >>> released(Scores(torch.tensor([[0.0, 0.0, 2.0]]), target, where, teacher))
    tensor([3.1090])
    """
    positive = (scores.target > 0) & scores.where
    counted = scores.where & positive.any(-1, keepdim=True)
    reward = _reward(scores, positive, teacher_temperature).masked_fill(~counted, 0.0)
    return (reward * log_softmax(scores.student / temperature, scores.where)).sum(-1)


def _reward(scores: Scores, positive: Tensor, temperature: float) -> Tensor:
    """Compute the ranker's log-probability of the positive against each single candidate: (Q, C)."""
    teacher = scores.taught("an adversarial loss") / temperature
    best = teacher.masked_fill(~positive, LOWEST).amax(-1, keepdim=True)
    # log p_phi(d | q, d, d_i) = log sigmoid(z - z_i); softplus keeps it exact when the ranker is sure.
    return -softplus(teacher - best)
