"""Softmax over the documents of the batch, beyond the plain one, which is `listwise.cross_entropy` over the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from components.losses.listwise import cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def both_directions(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """From each query to its document, and from the document back to its query (Yang et al. 2019; paper 000, Sec. 2).

    `-log e^{s(q_i, d_i)} / sum_j e^{s(q_i, d_j)} - log e^{s(q_i, d_i)} / sum_j e^{s(d_i, q_j)}`. Mined negatives stand
    in the first alone: no query asks for them. It is the sum of the two, as in the code that paper 000 grew from; for
    their mean give the term a weight of .5.
    """
    back = scores.positives().joined("document-query")
    return cross_entropy(scores, temperature=temperature) + cross_entropy(back, temperature=temperature)


def hardness_weighted(
    scores: Scores, *, temperature: float = 1.0, strength: float = 1.0, both_directions: bool = False
) -> Tensor:
    """Softmax in which a negative weighs the more the closer it is (Lan et al. 2025, LLaVE, whose strength is 9).

    `-log e^{s_i / t} / (e^{s_i / t} + sum_j w_j e^{s_j / t})` with `w_j = e^{strength s_j}`, by the cosine before any
    temperature and through which no gradient flows: it is as if there were w_j such negatives. What a row targets
    weighs 1. LLaVE's public code (`WeightedClipLoss`, whose own default strength is .5) takes the mean over the two
    directions, from query to document and back, which is `both_directions`.
    """

    def one(way: Scores) -> Tensor:
        weight = (strength * way.student.detach()).masked_fill(way.target > 0, 0.0)
        return cross_entropy(replace(way, student=way.student + temperature * weight), temperature=temperature)

    if not both_directions:
        return one(scores)
    return (one(scores) + one(scores.positives().joined("document-query"))) / 2
