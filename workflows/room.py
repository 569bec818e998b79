"""What the steps of a run that are under way at once share: this process, and the processors of what it runs on.

Each step has a thread of the driver. What a step does there itself it does alone: random numbers, imports and warnings
belong to a process. While it waits for Ray another has its turn. What it wants of Ray it gets as a whole or waits for,
first come, first served: so nothing holds half of what it needs, and none waits for ever.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from components.clock import at


class Room(NamedTuple):
    """Processors."""

    cpus: float = 0
    gpus: float = 0

    def and_(self, other: "Room") -> "Room":
        """Both together."""
        return Room(self.cpus + other.cpus, self.gpus + other.gpus)

    def within(self, other: "Room") -> bool:
        """Whether it is no more than another."""
        return self.cpus <= other.cpus and self.gpus <= other.gpus


_turn = threading.Lock()
_here = threading.local()
_changed = threading.Condition()
_held: list[Room] = []
_waiting: list[object] = []


@contextmanager
def turn() -> Iterator[None]:
    """A step's own work in this process; another step's begins when this waits for Ray or ends."""
    with _turn:
        _here.has_turn = True
        try:
            yield
        finally:
            _here.has_turn = False


@contextmanager
def held(needs: Room, there: Room) -> Iterator[None]:
    """Processors of all there are, waited for; what is more than there is waits until nothing else is held."""
    had_turn = getattr(_here, "has_turn", False)
    if had_turn:
        _turn.release()
    try:
        ticket = object()
        with at("waiting"), _changed:
            _waiting.append(ticket)
            try:
                _changed.wait_for(lambda: _waiting[0] is ticket and _fits(needs, there))
                _held.append(needs)
            finally:
                _waiting.remove(ticket)
                _changed.notify_all()
        try:
            yield
        finally:
            with _changed:
                _held.remove(needs)
                _changed.notify_all()
    finally:
        if had_turn:
            with at("waiting"):
                _turn.acquire()


def _fits(needs: Room, there: Room) -> bool:
    total = needs
    for other in _held:
        total = total.and_(other)
    return not _held or total.within(there)
