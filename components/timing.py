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
PAUSE = 1.0
"""Seconds without any interval that lie between two attempts of a step."""


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


def so_far() -> list[Interval]:
    """This thread's intervals until now, condensed. They are not forgotten."""
    recorded: list[Interval] = _thread.__dict__.get("recorded", [])
    stack: list[tuple[Kind, float]] = _thread.__dict__.get("stack", [])
    return condensed([*recorded, *(Interval(kind, began, time.time(), _node) for kind, began in stack[-1:])])


def condensed(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals: for each node and kind an interval as long as all of that kind, laid end to end.

    A moment of a node counts once, for the first of `KINDS`. Pauses in which nothing was recorded, such as between two
    attempts of a step, stay: intervals before and after a pause are merged separately.
    """
    result = []
    for stretch in _stretches(intervals):
        for node in dict.fromkeys(interval.node for interval in stretch):
            of_node = [interval for interval in stretch if interval.node == node]
            began = min(interval.began for interval in of_node)
            for kind, seconds in _by_kind(of_node).items():
                result.append(Interval(kind, began, began + seconds, node))
                began += seconds
    return [interval for interval in result if interval.ended > interval.began]


def _stretches(intervals: list[Interval]) -> list[list[Interval]]:
    """Intervals in order of their beginning, cut where there is a pause."""
    stretches: list[list[Interval]] = []
    reached = float("-inf")
    for interval in sorted(intervals, key=lambda interval: interval.began):
        if interval.began > reached + PAUSE:
            stretches.append([])
        stretches[-1].append(interval)
        reached = max(reached, interval.ended)
    return stretches


def compute_seconds(intervals: list[Interval]) -> dict[str, float]:
    """Return, for each node that computed, the seconds in which any of its processes did."""
    computing = [interval for interval in intervals if interval.kind == "compute"]
    nodes = sorted({interval.node for interval in computing})
    return {node: round(covered([interval for interval in computing if interval.node == node]), 3) for node in nodes}


def seconds_by_kind(intervals: list[Interval]) -> dict[Kind, float]:
    """Seconds of each kind over all processes. A moment counts once, for the first of `KINDS` that any process did."""
    return {kind: round(seconds, 3) for kind, seconds in _by_kind(intervals).items()}


def _by_kind(intervals: list[Interval]) -> dict[Kind, float]:
    seconds: dict[Kind, float] = {}
    counted: list[Interval] = []
    for kind in KINDS:
        before = covered(counted)
        counted += [interval for interval in intervals if interval.kind == kind]
        seconds[kind] = covered(counted) - before
    return seconds


def covered(intervals: list[Interval]) -> float:
    """Seconds that lie in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for _, began, ended, _ in sorted(intervals, key=lambda interval: interval.began):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
