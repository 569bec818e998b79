"""The softmax over a vocabulary: the likelihood of a token at each place, and tokens that are drawn from it.

A place has a score for each of 30,000 tokens, so that what is computed of them takes the time in which memory is read
and written. On a CPU it is done for a few places at a time, whose scores stay in the processor's cache meanwhile; on a
GPU for all places, with as few passes over them as there can be. The backward pass keeps no more than the scores and a
number for each place.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CACHED = 2**17
"""How many scores a CPU works on at a time: 1 MiB of fp64."""


def log_likelihoods(scores: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability (M,) of token `ids` (M,) under `scores` (M, V), in fp32, or fp64 if the scores are.

    >>> log_likelihoods(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([1])).exp()
    tensor([0.7500])
    """
    function = _InTheCache if scores.device.type == "cpu" else _InFewPasses
    result: Tensor = function.apply(scores, ids)
    return result


def sampled(scores: Tensor, draws: Tensor) -> Tensor:
    """Sample tokens (M,) from the softmax of scores (M, V): where the cumulative probability first exceeds the draw.

    Sums are in double precision. Two ways of computing them then almost never put a draw on different sides of a
    boundary.

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
    """Scores minus their logarithm of summed exponentials. The gradient is 1 at the token minus the probabilities."""

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
    """The same for all places at once, by torch's softmaxes: each is one pass over the scores in fp32."""

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
    """Divide the places into blocks that are worked on together. On a GPU there is a single block."""
    places, vocabulary = scores.shape
    step = max(1, CACHED // vocabulary) if scores.device.type == "cpu" else max(1, places)
    return (slice(begin, begin + step) for begin in range(0, places, step))
