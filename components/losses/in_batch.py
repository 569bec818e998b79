"""Variants of the softmax over all documents of the batch. The plain softmax is `cross_entropy` with `over: batch`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparring.components.losses.listwise import cross_entropy
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(blocks=True)
def both_directions(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """Add the cross entropy from query to document and the one from document to query: (Q,).

    `-log e^{s(q_i, d_i)} / sum_j e^{s(q_i, d_j)} - log e^{s(q_i, d_i)} / sum_j e^{s(d_i, q_j)}` (Yang et al., 2019;
    Moiseev et al., 2023, section 2). Mined negatives appear in the first sum only, because they have no query. The
    code that Moiseev et al. (2023) started from adds the two losses too. For their mean, set the weight to .5.

    With two queries, two documents and all scores 0, the loss is log 2 in each direction:

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {"document-query": Block(zeros, others)}
    >>> both_directions(Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks))
    tensor([1.3863, 1.3863])
    """
    back = scores.positives().joined("document-query")
    return cross_entropy(scores, temperature=temperature) + cross_entropy(back, temperature=temperature)


@needs(blocks=("both_directions",))
def hardness_weighted(
    scores: Scores, *, temperature: float = 1.0, strength: float = 1.0, both_directions: bool = False
) -> Tensor:
    """Compute a softmax cross entropy that gives hard negatives more weight: (Q,). Source: LLaVE (Lan et al., 2025).

    `-log e^{s_i / t} / (e^{s_i / t} + sum_j w_j e^{s_j / t})` with `w_j = e^{strength s_j}`. A negative counts as if
    it occurred w_j times. The weight uses the score before the temperature, and has no gradient. Positives have weight
    1. The paper uses strength 9, and the public code (`WeightedClipLoss`) has the default .5. The public code averages
    the losses from query to document and from document to query, as `both_directions` does.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> scores = Scores(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]]))
    >>> hardness_weighted(scores, strength=0.0), hardness_weighted(scores, strength=1.0)  # log 2, log(1 + e)
    (tensor([0.6931]), tensor([1.3133]))
    """

    def weighted(direction: Scores) -> Tensor:
        log_weight = (strength * direction.student.detach()).masked_fill(direction.target > 0, 0.0)
        student = direction.student + temperature * log_weight
        return cross_entropy(replace(direction, student=student), temperature=temperature)

    if not both_directions:
        return weighted(scores)
    return (weighted(scores) + weighted(scores.positives().joined("document-query"))) / 2
