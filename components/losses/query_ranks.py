"""The loss of EAR's query reranker (Chuang et al., 2023, section 3.3.1).

A candidate is an expansion of the query. Its target is the rank of the first correct passage that BM25 retrieves with
the expansion. Its score is the rank that the model predicts. Unlike elsewhere, lower scores are better.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(of="query ranks")
def ranking(
    scores: Scores,
    *,
    alpha: float = 0.01,
    pairs: Literal["all", "offsets"] = "all",
    scale: Literal["rank", "log", "reciprocal"] = "rank",
) -> Tensor:
    """Compute the margin ranking loss (Q,): `sum over r_i < r_j of max(0, M_i - M_j + alpha (r_j - r_i))`.

    `pairs: all` is the paper's formula: the sum over all pairs with different ranks. `pairs: offsets` is the public
    code: it sorts candidates by rank, takes the mean over the pairs that are i positions apart, and averages over i.
    Distant pairs are fewer, so each has more weight. Pairs of equal rank count too, with a margin of 0. In such a pair
    the candidate that comes first in the row counts as the better.

    `scale` says what r is: the rank (paper and public code), its natural logarithm, or `-1 / rank`. With ranks from 1
    to 101 the paper's margin between ranks 1 and 2 is a hundredth of the largest margin. The loss then lowers the mean
    rank, but has little effect on rank 1. The share is a seventh with logarithms and half with reciprocals.

    In this example the model predicts 3 for both ranks, 1 and 11. Their predictions should be alpha * 10 = 0.1 apart:

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> scores = Scores(torch.tensor([[3.0, 3.0]]), torch.tensor([[1.0, 11.0]]), torch.tensor([[True, True]]))
    >>> ranking(scores)
    tensor([0.1000])
    """
    if scale != "rank":
        ranks = scores.target.masked_fill(~scores.where, 1.0)
        scores = replace(scores, target=ranks.log() if scale == "log" else -1 / ranks)
    if pairs == "offsets":
        return _by_offsets(scores, alpha)
    predicted = scores.student.masked_fill(~scores.where, 0.0)
    rank = scores.target.masked_fill(~scores.where, 0.0)
    later = rank.unsqueeze(-2) - rank.unsqueeze(-1)  # (Q, i, j) r_j - r_i
    counts = (later > 0) & scores.where.unsqueeze(-1) & scores.where.unsqueeze(-2)
    hinge = (predicted.unsqueeze(-1) - predicted.unsqueeze(-2) + alpha * later).clamp_min(0)
    return hinge.masked_fill(~counts, 0.0).sum((-2, -1))


def _by_offsets(scores: Scores, alpha: float) -> Tensor:
    order = scores.target.masked_fill(~scores.where, float("inf")).argsort(dim=-1, stable=True)
    predicted = scores.student.masked_fill(~scores.where, 0.0).gather(-1, order)
    rank = scores.target.masked_fill(~scores.where, 0.0).gather(-1, order)
    where = scores.where.gather(-1, order)
    size = where.shape[-1]
    ahead = where.new_ones(size, size).triu(1)
    counts = (ahead & where.unsqueeze(-1) & where.unsqueeze(-2)).to(predicted.dtype)
    later = rank.unsqueeze(-2) - rank.unsqueeze(-1)
    hinge = (predicted.unsqueeze(-1) - predicted.unsqueeze(-2) + alpha * later).clamp_min(0)
    # Among n candidates, n - i pairs are i positions apart, and i goes from 1 to n - 1.
    number = where.sum(-1, keepdim=True).unsqueeze(-1)
    columns = where.new_ones(size, dtype=predicted.dtype).cumsum(0)
    offset = columns.unsqueeze(0) - columns.unsqueeze(1)
    weight = counts / ((number - offset) * (number - 1)).clamp_min(1)
    return (hinge * weight).sum((-2, -1))
