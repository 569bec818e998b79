"""The query reranker's loss: predicted ranks apart as the ranks are (paper 002, section 3.3.1).

A candidate is an expansion of the query, its target the rank at which BM25 finds an answer with it, and its score the
rank that the model predicts: here the lower score is the better one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def ranking(
    scores: Scores,
    *,
    alpha: float = 0.01,
    pairs: Literal["all", "offsets"] = "all",
    scale: Literal["rank", "log", "reciprocal"] = "rank",
) -> Tensor:
    """`sum over r_i < r_j of max(0, M_i - M_j + alpha (r_j - r_i))`, one value a query.

    `all` is the paper's formula: the sum over every pair with strictly different ranks. `offsets` is what the public
    code trains with: candidates in the order of their ranks, the mean over the pairs that stand i places apart, and
    the mean of that over all i. A pair far apart weighs more there, as fewer stand so far apart, and pairs of equal
    rank, which the paper leaves out, count with a margin of 0, the one that stands first in the list as the better.

    `scale` says what stands for r: the rank (the paper and the public code), its natural logarithm, or `-1 / r`. With
    ranks from 1 to 101 the paper's margin between the first place and the second is a hundredth of the largest: the
    loss asks for a low mean rank, and hardly for the first place. Of logarithms it is a seventh, of reciprocals half.
    """
    if scale != "rank":
        there = scores.target.masked_fill(~scores.where, 1.0)
        scores = replace(scores, target=there.log() if scale == "log" else -1 / there)
    if pairs == "offsets":
        return _by_offsets(scores, alpha)
    predicted = scores.student.masked_fill(~scores.where, 0.0)
    rank = scores.target.masked_fill(~scores.where, 0.0)
    later = rank.unsqueeze(-2) - rank.unsqueeze(-1)  # (Q, i, j) r_j - r_i
    counts = (later > 0) & scores.where.unsqueeze(-1) & scores.where.unsqueeze(-2)
    hinge = (predicted.unsqueeze(-1) - predicted.unsqueeze(-2) + alpha * later).clamp_min(0)
    return hinge.masked_fill(~counts, 0.0).sum((-2, -1))


def _by_offsets(scores: Scores, alpha: float) -> Tensor:
    last = scores.target.masked_fill(~scores.where, float("inf"))
    order = last.argsort(dim=-1, stable=True)
    predicted = scores.student.masked_fill(~scores.where, 0.0).gather(-1, order)
    rank = scores.target.masked_fill(~scores.where, 0.0).gather(-1, order)
    where = scores.where.gather(-1, order)
    size = where.shape[-1]
    ones = where.new_ones(size, size).triu(1)
    counts = (ones & where.unsqueeze(-1) & where.unsqueeze(-2)).to(predicted.dtype)
    later = rank.unsqueeze(-2) - rank.unsqueeze(-1)
    hinge = (predicted.unsqueeze(-1) - predicted.unsqueeze(-2) + alpha * later).clamp_min(0)
    # An offset of n candidates has n - offset pairs, and there are n - 1 offsets.
    number = where.sum(-1, keepdim=True).unsqueeze(-1)
    columns = where.new_ones(size, dtype=predicted.dtype).cumsum(0)
    offset = columns.unsqueeze(0) - columns.unsqueeze(1)
    weight = counts / ((number - offset) * (number - 1)).clamp_min(1)
    return (hinge * weight).sum((-2, -1))
