"""Tensors from all workers, with gradient: no factor is needed for the gradient of one process (see the tests)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone = False


def workers() -> int:
    """How many workers train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _alone else 1


@contextmanager
def alone() -> Iterator[None]:
    """In the block this process computes as if there were no other."""
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if workers() > 1 else 0


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(workers())]
        dist.all_gather(parts, local.contiguous())
        ctx.rows = len(local)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # autograd may still hold the other
        dist.all_reduce(gradient)
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows]


def gather(local: Tensor, *, rows: int) -> Tensor:
    """Every worker's rows, one after another, each padded with zeros to `rows`; alone, the tensor itself.

    The backward pass sums the gradients that all workers' losses send to a row.
    """
    if workers() == 1:
        return local
    padding = local.new_zeros((rows - len(local), *local.shape[1:]))
    return _Gather.apply(torch.cat([local, padding]))


def most(count: int, device: torch.device) -> int:
    """The largest of a number over the workers."""
    if workers() == 1:
        return count
    value = torch.tensor([count], device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value)


def total(values: Tensor) -> Tensor:
    """The sum of a tensor over the workers, without gradient."""
    values = values.detach().clone()
    if workers() > 1:
        dist.all_reduce(values)
    return values


def sum_gradients(parameters: list[Tensor]) -> None:
    """Add up every worker's gradients in place, in a few flat buffers."""
    if workers() == 1:
        return
    for group in _buckets([p for p in parameters if p.requires_grad]):
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in group])
        dist.all_reduce(flat)
        for parameter, gradient in zip(group, flat.split([p.numel() for p in group]), strict=True):
            parameter.grad = gradient.view_as(parameter).clone()


def _buckets(parameters: list[Tensor], limit: int = 2**24) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for parameter in parameters:
        if size and size + parameter.numel() > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel()
    return [bucket for bucket in buckets if bucket]
