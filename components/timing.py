"""Time that a step spends on each kind of work. Code says what it does, and the step's record sums the times.

A thread does one kind of work at a time: `with timed("compute")` inside `with timed("waiting")` interrupts the waiting.
A step may have several processes. The most useful kind of work of any process gets the time: if one process computes
while another waits, the step computes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

Kind = Literal["compute", "files", "start", "waiting"]
"""Kind of work. `compute`: matrix products and similar work. `files`: reading and writing. `start`: importing modules,
loading models and starting processes. `waiting`: none of these."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds of work, the most useful first."""

MAX_INTERVALS = 10_000
"""Most intervals that a thread keeps before it merges them. A training records three for each update."""
PAUSE = 1.0
"""Seconds without an interval that separate two attempts of a step."""


class Interval(NamedTuple):
    """A stretch of time, in seconds since the epoch."""

    kind: Kind
    began: float
    ended: float
    node: str = ""
    """Name of the node, for messages and reports."""


_thread = threading.local()
_node = socket.gethostname()


def set_node(node: str) -> None:
    """Set the name of this process's node, if a host has several."""
    global _node
    _node = node


@contextmanager
def timed(kind: Kind) -> Iterator[None]:
    """Record the time of this block as `kind` for the current thread."""
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
    """Add intervals to this thread's, for example those reported by another process."""
    recorded: list[Interval] = _thread.__dict__.setdefault("recorded", [])
    recorded += [interval for interval in intervals if interval.ended > interval.began]
    if len(recorded) > MAX_INTERVALS:
        recorded[:] = condensed(recorded)


def drain() -> list[Interval]:
    """Return and forget this thread's intervals. A step runs in one thread, and other threads may run other steps."""
    taken: list[Interval] = _thread.__dict__.pop("recorded", [])
    return taken


def so_far() -> list[Interval]:
    """Return this thread's intervals until now, condensed, without forgetting them."""
    recorded: list[Interval] = _thread.__dict__.get("recorded", [])
    stack: list[tuple[Kind, float]] = _thread.__dict__.get("stack", [])
    return condensed([*recorded, *(Interval(kind, began, time.time(), _node) for kind, began in stack[-1:])])


def condensed(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals into one for each node and kind, with the total length of that kind. They follow one another.

    A moment of a node counts once, for the first of `KINDS`. Pauses without intervals, such as between two attempts of
    a step, are kept: the intervals before and after a pause are merged separately.
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
    """Divide intervals at pauses, in order of their beginnings."""
    stretches: list[list[Interval]] = []
    reached = float("-inf")
    for interval in sorted(intervals, key=lambda interval: interval.began):
        if interval.began > reached + PAUSE:
            stretches.append([])
        stretches[-1].append(interval)
        reached = max(reached, interval.ended)
    return stretches


def compute_seconds(intervals: list[Interval]) -> dict[str, float]:
    """Return the seconds in which any process of a node computed, for each node on which one did."""
    computing = [interval for interval in intervals if interval.kind == "compute"]
    nodes = sorted({interval.node for interval in computing})
    return {node: round(covered([interval for interval in computing if interval.node == node]), 3) for node in nodes}


def seconds_by_kind(intervals: list[Interval]) -> dict[Kind, float]:
    """Return the seconds of each kind over all processes.

    These are wall-clock seconds. While processes do several kinds of work, the first kind of `KINDS` gets the time.
    """
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
    """Return the seconds that are in at least one of the intervals."""
    total, reached = 0.0, float("-inf")
    for _, began, ended, _ in sorted(intervals, key=lambda interval: interval.began):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
