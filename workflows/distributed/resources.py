"""The driver process and the processors, which concurrent steps share.

Each step has a thread of the driver. Its own Python code runs under one lock, because random state, imports and warning
filters belong to the whole process. While a step waits for Ray, it releases the lock, and another step runs.

A step reserves all processors that it needs together, in the order of the requests. So no step holds a part of what it
needs (no deadlock), and no small request overtakes a large one (no starvation).

A step may leave its Ray processes warm for a later step of the same kind (`keep_warm`). Warm processes end as soon as
a step of another kind needs the processors that they hold.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class _Warm(NamedTuple):
    """Something that waits for the next step of its kind, such as a Ray process."""

    kind: Hashable
    thing: Any
    holds: Resources
    end: Callable[[], None]


_driver = threading.Lock()
_thread = threading.local()
_changed = threading.Condition()
_reserved: list[Resources] = []
_waiting: list[object] = []
_warm: list[_Warm] = []


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
def reserve(needs: Resources, total: Resources, *, kind: Hashable = None, most: int = 0) -> Iterator[list[Any]]:
    """Wait until `needs` of the `total` processors are free, and reserve them for the block.

    A request for more than `total` gets its turn when nothing else is reserved, so that it does not wait for ever.
    Yield at most `most` warm things of this kind, which now belong to the caller. Warm things that hold processors
    which are needed now are ended.
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
            taken = [warm for warm in _warm if warm.kind == kind][:most]
            remaining = [warm for warm in _warm if not any(warm is item for item in taken)]
            _warm[:], excess = _that_fit(remaining, total)
        try:
            for warm in excess:
                warm.end()
            yield [warm.thing for warm in taken]
        finally:
            with _changed:
                _reserved.remove(needs)
                _changed.notify_all()
    finally:
        if had_lock:
            with timed("waiting"):
                _driver.acquire()


def keep_warm(kind: Hashable, thing: Any, holds: Resources, end: Callable[[], None]) -> None:
    """Keep something for the next step that reserves processors for this kind. `holds` is what it keeps from others
    meanwhile, and `end` gives that back."""
    with _changed:
        _warm.append(_Warm(kind, thing, holds, end))


def end_warm() -> None:
    """End everything that is kept warm."""
    with _changed:
        warm, _warm[:] = list(_warm), []
    for item in warm:
        item.end()


def forget_warm() -> None:
    """Forget everything that is kept warm, since it has ended by itself."""
    with _changed:
        _warm.clear()


def _that_fit(warm: list[_Warm], total: Resources) -> tuple[list[_Warm], list[_Warm]]:
    """Divide warm things into those that fit beside what is reserved, the latest first, and the remaining ones."""
    together, kept, excess = _sum(_reserved), list[_Warm](), list[_Warm]()
    for item in reversed(warm):
        holds_nothing = item.holds == Resources()
        if holds_nothing or together.plus(item.holds).fits_in(total):
            together = together.plus(item.holds)
            kept.insert(0, item)
        else:
            excess.insert(0, item)
    return kept, excess


def _is_free(needs: Resources, total: Resources) -> bool:
    """Check whether `needs` can be reserved now."""
    return not _reserved or _sum(_reserved).plus(needs).fits_in(total)


def _sum(parts: list[Resources]) -> Resources:
    together = Resources()
    for resources in parts:
        together = together.plus(resources)
    return together
