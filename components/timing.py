"""What a step spends its time on: code says what kind of work it does, and the step's record adds it up.

A thread does one kind of work at a time: `with timed("compute")` inside `with timed("waiting")` interrupts the waiting.
A step has several processes. A moment counts once, for the most useful kind that any of them did: while one computes
and another waits, the step computes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

Kind = Literal["compute", "files", "start", "waiting"]
"""`compute`: matrix products and the like. `files`: reading and writing. `start`: importing modules, loading models and
starting processes. `waiting`: none of these."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the most useful to the least."""

MAX_INTERVALS = 10_000
"""A thread that has more intervals than this adds them up: a training has three for each update."""


class Interval(NamedTuple):
    """A stretch of time, in seconds since the epoch."""

    kind: Kind
    began: float
    ended: float
    node: str = ""
    """Name of the node, for people."""


_thread = threading.local()
_node = socket.gethostname()


def set_node(node: str) -> None:
    """Set the name of this process's node, where a host has several."""
    global _node
    _node = node


@contextmanager
def timed(kind: Kind) -> Iterator[None]:
    """Record the time of this block as `kind`, for the current thread."""
    stack: list[tuple[Kind, float]] = _thread.__dict__.setdefault("stack", [])
    _record_until_now(stack)
    stack.append((kind, time.time()))
    try:
        yield
    finally:
        _record_until_now(stack)
        stack.pop()
        if stack:
            stack[-1] = (stack[-1][0], time.time())


def _record_until_now(stack: list[tuple[Kind, float]]) -> None:
    if stack:
        record([Interval(*stack[-1], time.time(), _node)])


def record(intervals: Iterable[Interval]) -> None:
    """Add intervals to those of this thread, for example those that another process reports."""
    recorded: list[Interval] = _thread.__dict__.setdefault("recorded", [])
    recorded += [interval for interval in intervals if interval.ended > interval.began]
    if len(recorded) > MAX_INTERVALS:
        recorded[:] = condensed(recorded)


def drain() -> list[Interval]:
    """Return this thread's intervals and forget them. A step runs in one thread, beside which other steps may run."""
    taken: list[Interval] = _thread.__dict__.pop("recorded", [])
    return taken


def condensed(intervals: list[Interval]) -> list[Interval]:
    """One interval for each node and kind, as long as all of that kind together and laid end to end.

    For intervals that do not overlap, as those of one thread.
    """
    result = []
    for node in dict.fromkeys(interval.node for interval in intervals):
        own = [interval for interval in intervals if interval.node == node]
        began = min(interval.began for interval in own)
        for kind in KINDS:
            seconds = sum(interval.ended - interval.began for interval in own if interval.kind == kind)
            result.append(Interval(kind, began, began + seconds, node))
            began += seconds
    return [interval for interval in result if interval.ended > interval.began]


def compute_seconds(intervals: list[Interval]) -> dict[str, float]:
    """For each node that computed, the seconds in which any of its processes did."""
    computing = [interval for interval in intervals if interval.kind == "compute"]
    nodes = sorted({interval.node for interval in computing})
    return {node: round(_covered([one for one in computing if one.node == node]), 3) for node in nodes}


def seconds_by_kind(intervals: list[Interval]) -> dict[Kind, float]:
    """Seconds of each kind over all processes. A moment counts once, for the first of `KINDS` that any process did."""
    seconds: dict[Kind, float] = {}
    counted: list[Interval] = []
    for kind in KINDS:
        before = _covered(counted)
        counted += [interval for interval in intervals if interval.kind == kind]
        seconds[kind] = round(_covered(counted) - before, 3)
    return seconds


def _covered(intervals: list[Interval]) -> float:
    """Seconds that lie in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for _, began, ended, _ in sorted(intervals, key=lambda interval: interval.began):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
