"""Softmax over the pairs that count, where a mask is True."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = -1e30
"""Replaces scores that do not count: finite, so that a row without any that do gives zeros, not NaN."""


def log_softmax(scores: Tensor, where: Tensor) -> Tensor:
    """(Q, C) log-probabilities over the pairs that count; 0 and without gradient at those that do not.

    >>> import torch
    >>> log_softmax(torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([[-0.6931, -0.6931,  0.0000]])
    """
    return scores.masked_fill(~where, LOWEST).log_softmax(-1).masked_fill(~where, 0.0)


def softplus(x: Tensor) -> Tensor:
    """`log(1 + e^x)` without overflow.

    >>> import torch
    >>> softplus(torch.tensor([0.0, 100.0]))
    tensor([  0.6931, 100.0000])
    """
    return x.clamp_min(0) + (-x.abs()).exp().log1p()


def softmax(scores: Tensor, where: Tensor) -> Tensor:
    """(Q, C) probabilities over the pairs that count; 0 at those that do not.

    >>> import torch
    >>> softmax(torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    return scores.masked_fill(~where, LOWEST).softmax(-1).masked_fill(~where, 0.0)
