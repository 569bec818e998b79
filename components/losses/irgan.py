"""The two losses of IRGAN (Wang et al., 2017), the baseline of AR2 in Zhang et al. (2022, Table 5).

The names are IRGAN's. Its generator chooses documents and is the retriever. Its discriminator is the ranker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.masking import softmax, softplus
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(teacher=True)
def generator(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """Compute the retriever's loss (Q,): the negative of the ranker's expected reward `log(1 + e^z)`.

    `-sum_i p_theta(d_i | q) log(1 + exp(z_i))` over all candidates, including the positive. The expectation over the
    group is exact, so a baseline would not change the gradient.

    Unlike AR2's reward, this reward depends on one document at a time: it is high if the ranker scores every document
    high. Train the ranker with `discriminator`, in its warm-up too. A listwise loss is no substitute: it does not
    change when all scores of a query rise by a constant, so the level of the scores is arbitrary.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> generator(Scores(torch.zeros(1, 2), target, where, teacher=torch.tensor([[3.0, 0.0]])))  # -(3.05 + 0.69) / 2
    tensor([-1.8709])
    """
    reward = softplus(scores.taught("irgan.generator")).masked_fill(~scores.where, 0.0)
    return -(softmax(scores.student / temperature, scores.where) * reward).sum(-1)


def discriminator(scores: Scores) -> Tensor:
    """Compute the ranker's loss (Q,): binary cross entropy with separate means over positives and negatives.

    `-mean log sigmoid(s+) - mean log(1 - sigmoid(s-))`. The mean over an empty set is 0.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    >>> discriminator(Scores(torch.zeros(1, 3), target, where))  # 2 log 2
    tensor([1.3863])
    """
    positive = (scores.target > 0) & scores.where
    negative = (scores.target <= 0) & scores.where
    student = scores.student.masked_fill(~scores.where, 0.0)  # a masked score may be NaN
    return _mean(softplus(-student), positive) + _mean(softplus(student), negative)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp_min(1)
