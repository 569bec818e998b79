"""The driver process and the processors, which concurrent steps share.

Each step has a thread of the driver. Its own Python code runs under one lock, because random state, imports and warning
filters belong to the whole process. While a step waits for Ray, it releases the lock, and another step runs.

A step reserves all processors that it needs together, in the order of the requests. So no step holds a part of what it
needs (no deadlock), and no small request overtakes a large one (no starvation).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sparring.components.timing import timed


class Resources(NamedTuple):
    """Numbers of processors."""

    cpus: float = 0
    gpus: float = 0

    def plus(self, addend: "Resources") -> "Resources":
        """Return the sum of both."""
        return Resources(self.cpus + addend.cpus, self.gpus + addend.gpus)

    def fits_in(self, total: "Resources") -> bool:
        """Check whether this is at most `total`. Parts of a GPU do not add up exactly."""
        return self.cpus <= total.cpus and round(self.gpus, 6) <= total.gpus


_driver = threading.Lock()
_thread = threading.local()
_changed = threading.Condition()
_reserved: list[Resources] = []
_waiting: list[object] = []


@contextmanager
def driver_lock() -> Iterator[None]:
    """Hold the lock of the driver process; `reserve` releases it for as long as it waits for and holds processors."""
    with _driver:
        _thread.has_lock = True
        try:
            yield
        finally:
            _thread.has_lock = False


@contextmanager
def reserve(needs: Resources, total: Resources) -> Iterator[None]:
    """Wait until `needs` of the `total` processors are free, and reserve them for the block.

    A request for more than `total` gets its turn when nothing else is reserved, so that it does not wait for ever.
    """
    had_lock = getattr(_thread, "has_lock", False)
    if had_lock:
        _driver.release()
    try:
        ticket = object()
        with timed("waiting"), _changed:
            _waiting.append(ticket)
            try:
                _changed.wait_for(lambda: _waiting[0] is ticket and _is_free(needs, total))
                _reserved.append(needs)
            finally:
                _waiting.remove(ticket)
                _changed.notify_all()
        try:
            yield
        finally:
            with _changed:
                _reserved.remove(needs)
                _changed.notify_all()
    finally:
        if had_lock:
            with timed("waiting"):
                _driver.acquire()


def _is_free(needs: Resources, total: Resources) -> bool:
    """Check whether `needs` can be reserved now."""
    together = needs
    for resources in _reserved:
        together = together.plus(resources)
    return not _reserved or together.fits_in(total)
