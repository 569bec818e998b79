"""The softmax over a vocabulary: the likelihood of a token at each position, and sampled tokens.

A position has a score for each of 30,000 tokens, so most of the time is spent on reading and writing memory. A CPU
therefore works on a few positions at a time, whose scores stay in its cache. A GPU works on all positions, with as few
passes over the scores as possible. For the backward pass, only the scores and a number for each position are kept.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CACHED = 2**17
"""Number of scores that a CPU works on at a time: 1 MiB in fp64."""


def log_likelihoods(scores: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities (M,) of the tokens `ids` (M,) under `scores` (M, V).

    They are in fp32, or in fp64 if the scores are.

    >>> log_likelihoods(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([1])).exp()
    tensor([0.7500])
    """
    function = _InTheCache if scores.device.type == "cpu" else _InFewPasses
    result: Tensor = function.apply(scores, ids)
    return result


def sampled(scores: Tensor, draws: Tensor) -> Tensor:
    """Sample tokens (M,) from the softmax of `scores` (M, V).

    A token is the first whose cumulative probability exceeds the draw, a random number from 0 to 1. Sums are in double
    precision, so that two ways of computing them almost never put a draw on different sides of a boundary.

    >>> sampled(torch.tensor([0.25, 0.75]).log().expand(3, 2), torch.tensor([0.0, 0.24, 0.26]))
    tensor([0, 0, 1])
    """
    tokens = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    for rows in _blocks(scores):
        highest = scores[rows].amax(-1, keepdim=True).double()
        cumulative = torch.sub(scores[rows], highest).exp_().cumsum_(-1)
        thresholds = draws[rows, None].double() * cumulative[:, -1:]
        tokens[rows] = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return tokens.clamp_max_(scores.shape[-1] - 1)


class _InTheCache(torch.autograd.Function):
    """Score of the token minus the logsumexp of all scores. The gradient is 1 at the token, minus the probabilities."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, ids: Tensor) -> Tensor:
        wide = torch.promote_types(scores.dtype, torch.float32)
        highest, summed = scores.new_empty(2, len(scores), dtype=wide)
        for rows in _blocks(scores):
            block = scores[rows].to(wide, copy=True)
            highest[rows] = block.amax(-1)
            summed[rows] = block.sub_(highest[rows, None]).exp_().sum(-1)
        ctx.save_for_backward(scores, ids, highest, summed)
        return scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1).to(wide) - highest - summed.log()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        scores, ids, highest, summed = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)
        result, factors = torch.empty_like(scores), -gradient / summed.unsqueeze(-1)
        for rows in _blocks(scores):
            block = scores[rows].to(highest.dtype, copy=True).sub_(highest[rows, None]).exp_().mul_(factors[rows])
            result[rows] = block.scatter_add_(1, ids[rows, None], gradient[rows])
        return result, None


class _InFewPasses(torch.autograd.Function):
    """The same for all positions at once with torch's softmaxes, each of which is one pass over the scores in fp32."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(scores, ids)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return scores.log_softmax(-1, dtype=wide).gather(-1, ids.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        scores, ids = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)
        result = torch.empty_like(scores)
        torch.mul(scores.softmax(-1, dtype=gradient.dtype), -gradient, out=result)
        return result.scatter_add_(1, ids.unsqueeze(-1), gradient.to(result.dtype)), None


def _blocks(scores: Tensor) -> Iterator[slice]:
    """Divide the positions into blocks that are computed together. On a GPU there is a single block."""
    places, vocabulary = scores.shape
    step = max(1, CACHED // vocabulary) if scores.device.type == "cpu" else max(1, places)
    return (slice(begin, begin + step) for begin in range(0, places, step))
