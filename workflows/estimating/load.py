"""How much of this machine other programs take while something is measured."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Self

import psutil


class Others:
    """Watches this machine's processors during a block, in which this process and those that it starts compute."""

    share = 0.0
    """Of all cores' time; of this block once it has ended. Processes that this one started must have ended in it."""

    def __enter__(self) -> Self:
        self._before = _seconds()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        cores = os.sched_getaffinity(0)
        took, busy, own = (now - before for now, before in zip(_seconds(), self._before, strict=True))
        self.share = min(1.0, max(0.0, (busy - own) / (took * len(cores))))


def _seconds() -> tuple[float, float, float]:
    """The clock's; those in which the cores that this process may use computed; those that it and its children did."""
    every, own = psutil.cpu_times(percpu=True), os.times()
    cores = [every[core] for core in os.sched_getaffinity(0) if core < len(every)]
    # What a virtual machine's host gave to others counts as theirs; `guest` is a part of `user`.
    busy = sum(one.user + one.nice + one.system + one.irq + one.softirq + one.steal for one in cores)
    return time.perf_counter(), busy, own.user + own.system + own.children_user + own.children_system
