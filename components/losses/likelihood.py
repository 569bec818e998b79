"""Losses on the likelihood of texts that a language model learns to write.

A row is a text, and a candidate is one of its tokens. The score is the token's log-probability after the tokens before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(of="tokens")
def negative_log_likelihood(scores: Scores, *, over: Literal["mean", "sum"] = "mean") -> Tensor:
    """Compute the negative log-likelihood of each text: (Q,).

    `-sum_t y_t log p(token_t | tokens before)`. With `over: mean` the sum is divided by `sum_t y_t`, so that short and
    long texts have the same weight, as in GAR (Mao et al., 2021). y is 0 at tokens that are read, but not predicted.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> log_probabilities = torch.tensor([[-1.0, -2.0, -9.0]])
    >>> scores = Scores(log_probabilities, torch.ones(1, 3), torch.tensor([[True, True, False]]))
    >>> negative_log_likelihood(scores), negative_log_likelihood(scores, over="sum")
    (tensor([1.5000]), tensor([3.]))
    """
    weight = scores.target.masked_fill(~scores.where, 0.0)
    loss = -(weight * scores.student.masked_fill(~scores.where, 0.0)).sum(-1)
    return loss / weight.sum(-1).clamp_min(1e-12) if over == "mean" else loss
