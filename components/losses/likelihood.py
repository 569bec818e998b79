"""What a language model loses on the texts that it should write.

A row is a text, a candidate one of its tokens, and a score the logarithm of the probability that the model gives that
token after those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def negative_log_likelihood(scores: Scores, *, over: Literal["mean", "sum"] = "mean") -> Tensor:
    """`-sum_t y_t log p(token_t | tokens before)`, divided by `sum_t y_t` where the mean over a text's tokens is asked
    for. GAR trains its generators with the mean (Mao et al. 2021); a text of few tokens then weighs as much as another.
    """
    weight = scores.target.masked_fill(~scores.where, 0.0)
    lost = -(weight * scores.student.masked_fill(~scores.where, 0.0)).sum(-1)
    return lost / weight.sum(-1).clamp_min(1e-12) if over == "mean" else lost
