"""Something that is done again and again while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(seconds: float, do: Callable[[], None]) -> Iterator[None]:
    """Do it every so many seconds, in a thread of its own, until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            do()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
