"""Units of work that are done within a longer piece of work, such as the texts of one shard that are encoded so far.

Code that computes reports them. Whoever shows the progress listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[int], object]

_thread = threading.local()


def report(units: int) -> None:
    """Report units of work as done. Nothing happens if nobody listens in this thread."""
    listener: Listener | None = getattr(_thread, "listener", None)
    if listener is not None:
        listener(units)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the units that this thread reports in the block."""
    before = getattr(_thread, "listener", None)
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before
