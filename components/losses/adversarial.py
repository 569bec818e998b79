"""AR2's adversarial loss: the retriever learns to prefer negatives that fool the ranker (Zhang et al., 2022, Eq. 8-10).

`expected_reward` is the paper's; `released` is what its public code computes instead. The teacher is the ranker.
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
    """(Q,) the ranker's log-probability of the positive against a negative, expected under the retriever.

    `J = sum_i p_theta(d_i- | q, D-) log p_phi(d | q, d, d_i-)`, where `p_theta` is a softmax over the negatives alone;
    its gradient is Eq. 10. Minimising J moves the retriever's probability to the negatives that the ranker mistakes for
    the positive. J is never above 0; it is 0 for a row without a positive or without negatives.

    The ranker cannot tell the first negative from the positive. A retriever that prefers that negative has less loss:

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
    """(Q,) the loss of AR2's public code: all candidates count, the positive among them, without their probability.

    `sum_i r_i log p_theta(d_i | q, d, D-)`, where `r_i = log p_phi(d | q, d, d_i)` and `p_theta` is a softmax over the
    whole group. The positive's r is always log 1/2. So if the ranker is sure, this is a cross entropy towards the
    positive; a negative that fools the ranker attracts probability too.

    The public code sums this loss over the 8 questions of a GPU and averages all others, so its even mixture is 8 to 1:
    here a weight of 4 beside one of .5 (`reduce: sum` would sum over the whole batch). It also adds 1e-7 to
    probabilities before a logarithm, which is not done here.

    Less loss for the candidate that the ranker cannot tell from the positive than for one that it can:

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
    """(Q, C) the ranker's log-probability of the positive against each candidate alone."""
    teacher = scores.taught("an adversarial loss") / temperature
    best = teacher.masked_fill(~positive, LOWEST).amax(-1, keepdim=True)
    # log p_phi(d | q, d, d_i) = log sigmoid(z - z_i); softplus keeps it exact when the ranker is sure.
    return -softplus(teacher - best)
