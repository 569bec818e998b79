"""Sums of gradients over the workers, sent while the backward pass still runs.

Parameters are divided into buckets. When a parameter's gradient is complete, its hook says so, and a bucket whose last
gradient is complete is sent at once.

This is how torch's DDP works. DDP itself has three gaps here (torch 2.13):

- After its first update it divides the parameters anew. A training that was resumed then has other sums of rounding
  errors than one that was not interrupted: a fifth of the gradient's numbers differ with 4 workers.
  `find_unused_parameters` prevents this, and searches the graph in each update.
- It sums gradients in the precision of the weights. Weights in bf16 have gradients that are added up in fp32, over the
  parts of a batch and over the workers (`components.training.master_weights`).
- It wants one call of one module in each update. Objectives encode, gather and compute losses in separate calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from sparring.components.compute.gather import begin_sum, of_first, workers
from sparring.components.training import master_weights
from sparring.components.training.sharding import is_sharded

BUCKET = 2**21
"""Maximum number of gradients in a bucket. A parameter with more is a bucket by itself."""


class GradientSums:
    """The sums of the gradients of an objective's parameters over the workers.

    Sharded parameters are left out, because FSDP2 sums their gradients. With one worker, nothing is sent.

    Example::

        with GradientSums(objective) as sums:
            loss_of_first_part.backward()
            with sums.last_pass():
                loss_of_last_part.backward()
    """

    def __init__(self, objective: nn.Module) -> None:
        self._objective = objective
        whole = [p for p in objective.parameters() if p.requires_grad and not is_sharded(p)] if workers() > 1 else []
        # The backward pass runs from the last layer to the first.
        self._buckets = [_Bucket(parameters) for parameters in divided(whole[::-1], BUCKET)]
        self._bucket_of: dict[Tensor, _Bucket] = {
            parameter: bucket for bucket in self._buckets for parameter in bucket.parameters
        }
        self._order: list[_Bucket] | None = None
        self._complete: list[_Bucket] = []
        self._sent = 0
        self._is_last_pass = False
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._hooks = [p.register_post_accumulate_grad_hook(self._completed) for p in self._bucket_of]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def last_pass(self) -> Iterator[None]:
        """Send the gradients that this block's backward pass completes, and wait for all sums at its end.

        A parameter without a gradient on any worker has none afterwards. The optimizer then skips it, as with one
        worker.
        """
        self._is_last_pass, self._sent, self._complete = True, 0, []
        for bucket in self._buckets:
            bucket.open()
        try:
            yield
        finally:
            self._is_last_pass = False
        master_weights.take_gradients(self._objective)
        order = self._order or self._buckets
        for bucket in order[self._sent :]:
            bucket.send()
        for bucket in order:
            bucket.receive()
        if self._order is None and self._buckets:
            self._order = self._agreed_order()

    def _completed(self, parameter: Tensor) -> None:
        """Note that a parameter's gradient is complete in this pass. Send the buckets whose turn it is."""
        master_weights.take_gradient(parameter)
        bucket = self._bucket_of[parameter]
        if not self._is_last_pass or not bucket.completes(parameter):
            return
        self._complete.append(bucket)
        while self._order and self._sent < len(self._order) and self._order[self._sent] in self._complete:
            self._order[self._sent].send()
            self._sent += 1

    def _agreed_order(self) -> list[_Bucket]:
        """Order the buckets as the first worker completed them in its first pass. The remaining ones come last.

        The order changes no sum: parameters stay in their buckets, so a resumed training has the same rounding.
        """
        order = dict.fromkeys([*self._complete, *self._buckets])
        return [self._buckets[of_first(self._buckets.index(bucket))] for bucket in order]


class _Bucket:
    """Some parameters whose gradients are sent together, in fp32 if the parameters have master weights."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._missing: set[Tensor] = set()
        self._sent: Any = None

    def open(self) -> None:
        """Start a pass in which no gradient is complete."""
        self._missing = set(self.parameters)

    def completes(self, parameter: Tensor) -> bool:
        """Note a complete gradient. Return True if it was the last one of the bucket."""
        self._missing.remove(parameter)
        return not self._missing

    def send(self) -> None:
        """Begin to sum the gradients. They give way to a buffer, so that the memory is needed once."""
        updated = [master_weights.master(parameter) for parameter in self.parameters]
        has_gradient = [master.grad is not None for master in updated]
        numbers = [(m.grad if m.grad is not None else torch.zeros_like(m)).reshape(-1) for m in updated]
        # Each gradient has a number that says on how many workers it exists.
        flags = [torch.full_like(numbers[0][:1], float(exists)) for exists in has_gradient]
        buffer = torch.cat([*numbers, *flags])
        for master in updated:
            master.grad = None
        self._sent = (updated, has_gradient, buffer, begin_sum(buffer))

    def receive(self) -> None:
        """Wait for the sums and set the gradients."""
        updated, has_gradient, buffer, work = self._sent
        work.wait()
        self._sent = None
        *sums, flags = buffer.split([*(master.numel() for master in updated), len(updated)])
        # Only a worker without a gradient has to ask, and so to wait for the device.
        exists = has_gradient if all(has_gradient) else flags.tolist()
        for master, gradient, one_exists in zip(updated, sums, exists, strict=True):
            master.grad = gradient.view_as(master) if one_exists else None


def divided(parameters: list[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    """Divide parameters into consecutive lists of one precision with at most `limit` numbers.

    A larger parameter is a list by itself.
    """
    lists: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        precision = master_weights.master(parameter).dtype
        fits = lists and size + parameter.numel() <= limit
        if not fits or master_weights.master(lists[-1][0]).dtype != precision:
            lists.append([])
            size = 0
        lists[-1].append(parameter)
        size += parameter.numel()
    return lists
