"""Exchange of tensors, sums and gradients between the workers of one training.

The gradient of `gather` equals that of one process. It needs no factor for the number of workers (see the tests).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone = False


def workers() -> int:
    """Return the number of workers that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _alone else 1


@contextmanager
def alone() -> Iterator[None]:
    """Compute inside this block as if this process were the only worker."""
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


def rank() -> int:
    """Return the number of this worker, from 0."""
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
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # autograd may still use the original
        dist.all_reduce(gradient)
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows]


def gather(local: Tensor, *, rows: int) -> Tensor:
    """Gather the rows of all workers in order of their ranks, with zeros after each worker's to make `rows` of them.

    With one worker, return the tensor itself. The backward pass sums a row's gradients over the losses of all workers.
    """
    if workers() == 1:
        return local
    padding = local.new_zeros((rows - len(local), *local.shape[1:]))
    return _Gather.apply(torch.cat([local, padding]))


def max_over_workers(count: int, device: torch.device) -> int:
    """Return the largest `count` of all workers."""
    if workers() == 1:
        return count
    value = torch.tensor([count], device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value)


def sum_over_workers(values: Tensor) -> Tensor:
    """Sum a tensor over the workers, without gradient."""
    values = values.detach().clone()
    if workers() > 1:
        dist.all_reduce(values)
    return values


def of_first(value: int, device: torch.device) -> int:
    """Return the first worker's `value` on every worker. All workers wait for each other here."""
    if workers() == 1:
        return value
    contribution = int(value) if rank() == 0 else 0  # int, as a bool's tensor would have another type than 0's
    return int(sum_over_workers(torch.tensor([contribution], device=device)))


def sum_gradients(parameters: list[Tensor]) -> None:
    """Replace every parameter's gradient with its sum over the workers, sent in a few large buffers.

    A parameter without a gradient on any worker has none afterwards. The optimizer then skips it, as with one worker.
    """
    if workers() == 1:
        return
    for group in _buckets([p for p in parameters if p.requires_grad]):
        present = group[0].new_tensor([p.grad is not None for p in group])
        sent = [*((p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in group), present]
        flat = torch.cat(sent)
        dist.all_reduce(flat)
        *gradients, present = flat.split([part.numel() for part in sent])
        for parameter, gradient, exists in zip(group, gradients, present.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter).clone() if exists else None


def _buckets(parameters: list[Tensor], limit: int = 2**24) -> list[list[Tensor]]:
    """Divide the parameters into groups of at most `limit` numbers. A larger parameter is a group by itself."""
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for parameter in parameters:
        if size and size + parameter.numel() > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel()
    return [bucket for bucket in buckets if bucket]
