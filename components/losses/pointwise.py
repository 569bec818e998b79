"""Losses that look at each candidate by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.masking import softplus

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def binary_cross_entropy(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """`-mean_i [y_i log σ(s_i) + (1 - y_i) log(1 - σ(s_i))]` over a query's candidates, each asked alone.

    The passage reranker of Nogueira and Cho (2019), as paper 002 (Appendix B.2) has it; their head has two logits, and
    their difference is the score here. Every target above 0 is relevant.
    """
    relevant = ((scores.target > 0) & scores.where).to(scores.student.dtype)
    student = scores.student.masked_fill(~scores.where, 0.0) / temperature
    lost = (softplus(student) - relevant * student).masked_fill(~scores.where, 0.0)
    return lost.sum(-1) / scores.where.sum(-1).clamp_min(1)
