"""Losses that judge each candidate by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.masking import softplus

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


def binary_cross_entropy(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """Compute the mean binary cross entropy over a query's candidates: (Q,).

    `-mean_i [y_i log σ(s_i) + (1 - y_i) log(1 - σ(s_i))]`, where y is 1 for targets above 0. This is the loss of the
    passage reranker of Nogueira and Cho (2019), which EAR uses (Chuang et al., 2023, Appendix B.2). Their head has two
    logits. The score here is the difference between the two.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, True, False]])
    >>> binary_cross_entropy(Scores(torch.tensor([[0.0, 0.0, 9.0]]), target, where))  # log 2
    tensor([0.6931])
    """
    relevant = ((scores.target > 0) & scores.where).to(scores.student.dtype)
    student = scores.student.masked_fill(~scores.where, 0.0) / temperature
    loss = (softplus(student) - relevant * student).masked_fill(~scores.where, 0.0)
    return loss.sum(-1) / scores.where.sum(-1).clamp_min(1)
