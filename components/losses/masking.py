"""Softmax over the pairs that count. These are the pairs at which a mask is True."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = -1e30
"""Replacement of scores that do not count. It is finite, so that a row without counted pairs gives 0 and not NaN."""


def log_softmax(scores: Tensor, where: Tensor) -> Tensor:
    """Compute (Q, C) log-probabilities over the pairs that count. Other pairs get 0 and no gradient.

    >>> import torch
    >>> log_softmax(torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.6931, -0.6931,  0.0000]])
    """
    return scores.masked_fill(~where, LOWEST).log_softmax(-1).masked_fill(~where, 0.0)


def softplus(x: Tensor) -> Tensor:
    """Compute `log(1 + e^x)` without overflow.

    >>> import torch
    >>> softplus(torch.tensor([0.0, 100.0]))
    tensor([  0.6931, 100.0000])
    """
    return x.clamp_min(0) + (-x.abs()).exp().log1p()


def softmax(scores: Tensor, where: Tensor) -> Tensor:
    """Compute (Q, C) probabilities over the pairs that count. Other pairs get 0.

    >>> import torch
    >>> softmax(torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    return scores.masked_fill(~where, LOWEST).softmax(-1).masked_fill(~where, 0.0)
