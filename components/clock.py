"""Where time goes: whoever works says what it is at, and a step's record adds it up.

`with at("compute")` inside `with at("waiting")` ends the waiting and takes it up again afterwards: a process is at one
thing at a time. Over the processes of a step the most useful counts: a moment in which one computes and another waits
is one of computing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

Kind = Literal["compute", "files", "start", "waiting"]
"""At matrix products and the like; at reading and writing; at imports, models and processes; at none of these."""

KINDS: tuple[Kind, ...] = get_args(Kind)
MOST = 10_000
"""Intervals that a process notes before it adds them up: a training has three for each of its updates."""


class Interval(NamedTuple):
    """A stretch of time, in seconds since the epoch."""

    kind: Kind
    began: float
    ended: float
    node: str = ""
    """Where, in a word for people."""


_here = threading.local()
_node = socket.gethostname()


def on(node: str) -> None:
    """Say what node this process is on, where its host has several."""
    global _node
    _node = node


@contextmanager
def at(kind: Kind) -> Iterator[None]:
    """Note what this thread is at."""
    stack: list[tuple[Kind, float]] = _here.__dict__.setdefault("stack", [])
    _change(stack)
    stack.append((kind, time.time()))
    try:
        yield
    finally:
        _change(stack)
        stack.pop()
        if stack:
            stack[-1] = (stack[-1][0], time.time())


def _change(stack: list[tuple[Kind, float]]) -> None:
    """Note what the thread was at until now."""
    if stack:
        add([Interval(*stack[-1], time.time(), _node)])


def add(intervals: Iterable[Interval]) -> None:
    """Note what another process was at."""
    noted: list[Interval] = _here.__dict__.setdefault("noted", [])
    noted += [interval for interval in intervals if interval.ended > interval.began]
    if len(noted) > MOST:
        noted[:] = end_to_end(noted)


def drain() -> list[Interval]:
    """All that was noted in this thread since the last time: a step keeps to one, and others may run beside it."""
    taken: list[Interval] = _here.__dict__.pop("noted", [])
    return taken


def end_to_end(intervals: list[Interval]) -> list[Interval]:
    """As much of each kind, one after another from where the first begins; for a process, which does one at a time."""
    found = []
    for node in dict.fromkeys(interval.node for interval in intervals):
        here = [interval for interval in intervals if interval.node == node]
        at = min(interval.began for interval in here)
        for kind in KINDS:
            seconds = sum(interval.ended - interval.began for interval in here if interval.kind == kind)
            found.append(Interval(kind, at, at + seconds, node))
            at += seconds
    return [interval for interval in found if interval.ended > interval.began]


def at_work(intervals: list[Interval]) -> dict[str, float]:
    """Seconds in which any process of a node computed, for each node that did."""
    computing = [interval for interval in intervals if interval.kind == "compute"]
    nodes = sorted({interval.node for interval in computing})
    return {node: round(_union([one for one in computing if one.node == node]), 3) for node in nodes}


def spent(intervals: list[Interval]) -> dict[Kind, float]:
    """Seconds of each kind over all processes, a moment counted once, for the first of `KINDS` that any was at."""
    found: dict[Kind, float] = {}
    covered: list[Interval] = []
    for kind in KINDS:
        before = _union(covered)
        covered += [interval for interval in intervals if interval.kind == kind]
        found[kind] = round(_union(covered) - before, 3)
    return found


def _union(intervals: list[Interval]) -> float:
    """The length of what some intervals cover."""
    total, reached = 0.0, float("-inf")
    for _, began, ended, _ in sorted(intervals, key=lambda interval: interval.began):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total
