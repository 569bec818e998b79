"""Batches of a training, prepared ahead of the device by a thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self, TypeVar

import torch

from sparring.components.compute.gather import rank, workers
from sparring.components.data.batches import pinned, to_device
from sparring.components.timing import timed
from sparring.components.training.config import TrainConfig
from sparring.components.training.objective import Objective, Visit
from sparring.components.training.schedule import visits_of_update

T = TypeVar("T")


class Prepared(NamedTuple):
    """This worker's share of a part of a batch, on the CPU."""

    batch: Any
    operations: float
    """Lower bound of the floating-point operations of its forward and backward pass."""

    def on(self, device: torch.device) -> Any:
        """Return the batch on a device. The copy runs while the CPU goes on."""
        return to_device(self.batch, device)


def share(rows: list[T], parts: int, part: int) -> list[T]:
    """Take a worker's or a part's consecutive share of a batch. The first shares have one row more, if any has."""
    size, rest = divmod(len(rows), parts)
    start = part * size + min(part, rest)
    return rows[start : start + size + (part < rest)]


class Place(NamedTuple):
    """This worker among all."""

    workers: int
    rank: int


def prepare(
    objective: Objective, visits: list[Visit], place: Place, *, parts: int, part: int, device: torch.device
) -> Prepared:
    """Collate a worker's share of a part of a batch, for a copy to the device."""
    batch = objective.collate(share(share(visits, parts, part), *place))
    operations = objective.operations(batch) or 0.0
    return Prepared(pinned(batch) if device.type == "cuda" else batch, operations)


class Batches:
    """The batches of a training. A thread prepares the next part of a batch while the device computes the present one.

    The order of the rows and their random choices depend only on the update, so the thread changes no result.
    """

    def __init__(self, objective: Objective, config: TrainConfig, *, seed: int, device: torch.device) -> None:
        self._objective, self._config, self._seed, self._device = objective, config, seed, device
        self._place = Place(workers(), rank())  # a validation is `alone` while the thread runs
        self._thread = ThreadPoolExecutor(1, "batches")
        self._ahead: dict[tuple[int, int], Future[Prepared]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def of(self, update: int) -> Iterator[Prepared]:
        """Yield the parts of an update's batch."""
        parts = self._config.accumulate
        for part in range(parts):
            present = self._prepared(update, part)
            following = (update, part + 1) if part + 1 < parts else (update + 1, 0)
            if following[0] < self._config.updates:
                self._ahead = {following: self._thread.submit(self._prepare, *following)}
            yield present

    def _prepared(self, update: int, part: int) -> Prepared:
        with timed("files"):
            if (update, part) not in self._ahead:
                return self._prepare(update, part)
            return self._ahead[update, part].result()

    def _prepare(self, update: int, part: int) -> Prepared:
        visits = visits_of_update(self._config, self._objective.rows(), seed=self._seed, update=update)
        parts = self._config.accumulate
        return prepare(self._objective, visits, self._place, parts=parts, part=part, device=self._device)
