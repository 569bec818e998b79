"""Exchange of tensors and numbers between the workers of one training.

The gradient of `gather` equals that of one process. It needs no factor for the number of workers (see the tests).

Numbers that the CPU needs, such as sizes, travel from CPU to CPU through gloo. On GPUs they would wait for all work
that the device still has to do, and the device would then wait for its next work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_alone = False
_first: int | None = None


class _Groups(NamedTuple):
    """Process groups of the workers that train together."""

    tensors: Any
    gradients: Any
    """A separate group: during a backward pass its sums need no fixed order relative to other exchanges."""
    numbers: Any


_groups: dict[int, _Groups] = {}
"""Groups by number of workers."""
_world: Any = None
"""The process group of all processes that `_groups` belong to."""


def workers() -> int:
    """Return the number of workers that train together."""
    if _alone or not (dist.is_available() and dist.is_initialized()):
        return 1
    return _first or dist.get_world_size()


@contextmanager
def alone() -> Iterator[None]:
    """Compute inside this block as if this process were the only worker."""
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


@contextmanager
def among_first(count: int) -> Iterator[bool]:
    """Let only the first `count` workers train together inside this block. All workers must enter it.

    Yield True if this worker is one of them. The remaining workers must not exchange anything inside the block.
    """
    global _first
    before, _first = _first, count
    try:
        if dist.is_available() and dist.is_initialized():
            _process_groups()  # all processes must make a group, including those outside it
            yield dist.get_rank() < count
        else:
            yield True
    finally:
        _first = before


def rank() -> int:
    """Return the number of this worker, from 0."""
    return dist.get_rank() if workers() > 1 else 0


def _process_groups() -> _Groups:
    """Return the groups of the workers that train together. The first call makes them, on all processes at once."""
    global _world
    if _world is not dist.group.WORLD:
        _groups.clear()
        _world = dist.group.WORLD
    count = _first or dist.get_world_size()
    if count not in _groups:
        ranks = list(range(count))
        tensors = _world if count == dist.get_world_size() else dist.new_group(ranks)
        numbers = tensors if dist.get_backend() == "gloo" else dist.new_group(ranks, backend="gloo")
        _groups[count] = _Groups(tensors, dist.new_group(ranks), numbers)
    return _groups[count]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: list[int]) -> Tensor:
        most = max(counts)
        padding = local.new_zeros((most - len(local), *local.shape[1:]))
        parts = [local.new_empty((most, *local.shape[1:])) for _ in counts]
        dist.all_gather(parts, torch.cat([local, padding]), group=_process_groups().tensors)
        ctx.counts = counts
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # autograd may still use the original
        dist.all_reduce(gradient, group=_process_groups().tensors)
        start = first_row(ctx.counts)
        return gradient[start : start + ctx.counts[rank()]], None


def gather(local: Tensor, counts: list[int]) -> Tensor:
    """Gather the rows of all workers, in order of their ranks. `counts` are their numbers of rows (`of_workers`).

    With one worker, return the tensor itself. The backward pass sums a row's gradients over the losses of all workers.
    """
    if workers() == 1:
        return local
    gathered: Tensor = _Gather.apply(local, counts)
    return gathered


def first_row(counts: list[int]) -> int:
    """Return the position of this worker's first row in what `gather` returns."""
    return sum(counts[: rank()])


def of_workers(number: int) -> list[int]:
    """Return the `number` of every worker, in order of their ranks. All workers wait for each other here."""
    if workers() == 1:
        return [number]
    numbers = torch.zeros(workers(), dtype=torch.int64)
    group = _process_groups().numbers
    dist.all_gather(list(numbers.split(1)), torch.tensor([int(number)]), group=group)
    return [int(value) for value in numbers]


def of_first(number: int) -> int:
    """Return the first worker's `number` on every worker. All workers wait for each other here."""
    return of_workers(number)[0]


def wait_for_workers() -> None:
    """Wait until every worker has called this."""
    of_workers(0)


def sum_over_workers(values: Tensor) -> Tensor:
    """Sum a tensor over the workers, without gradient."""
    values = values.detach().clone()
    if workers() > 1:
        dist.all_reduce(values, group=_process_groups().tensors)
    return values


def begin_sum(values: Tensor) -> Any:
    """Begin to sum a gradient over the workers, in place. Call `wait` of the result before you read the tensor.

    All workers must begin these sums in the same order. Other exchanges may come between them anywhere.
    """
    return dist.all_reduce(values, group=_process_groups().gradients, async_op=True)
