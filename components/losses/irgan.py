"""IRGAN's two losses (Wang et al., 2017), which AR2 is compared with (Zhang et al., 2022, Table 5).

The names are IRGAN's: its generator, which chooses documents, is the retriever; its discriminator is the ranker.
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
    """(Q,) the retriever's loss: minus the ranker's reward `log(1 + e^z)`, expected under the retriever.

    `-sum_i p_theta(d_i | q) log(1 + exp(z_i))` over all candidates, the positive among them. The expectation over the
    group is exact, so a baseline would not change the gradient. Unlike AR2's, this reward looks at each document alone:
    a ranker that scores all of them high rewards them all, and one that scores all of them low rewards none. So the
    ranker must learn by `discriminator`, in its warm-up too: a listwise loss does not change when all scores of a query
    rise by the same, and leaves their level to chance.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> generator(Scores(torch.zeros(1, 2), target, where, teacher=torch.tensor([[3.0, 0.0]])))  # -(3.05 + 0.69) / 2
    tensor([-1.8709])
    """
    reward = softplus(scores.taught("irgan.generator")).masked_fill(~scores.where, 0.0)
    return -(softmax(scores.student / temperature, scores.where) * reward).sum(-1)


def discriminator(scores: Scores) -> Tensor:
    """(Q,) the ranker's loss: binary cross entropy, averaged over the positives and over the negatives of a query.

    `-mean log sigmoid(s+) - mean log(1 - sigmoid(s-))`. A mean over no documents is 0.

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
