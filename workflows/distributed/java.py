"""Java in a child process. Java cannot be stopped inside a process, so it never starts in the driver or in a worker.

Starting Java takes longer than the work of many steps. So a child that has finished stays for a while, for the next
work of the same process.
"""

import atexit
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.components.retrieval import lucene
from sparring.workflows.distributed.child import Child, surroundings


class InChild:
    """A worker (`workflows.distributed.shards`) whose work is done in a child process. Java has started when the
    constructor returns."""

    def __init__(self, *, work: Callable[..., Any], threads: int, **constructor: Any) -> None:
        self._child, self._whole = _idle.taken(threads) or Child(threads), True
        try:
            self._tell(work, {"threads": threads, **constructor})
        except BaseException:
            self.close()
            raise

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        self._tell(task, path)

    def _tell(self, *message: Any) -> None:
        """Send the child a message, and wait until the child has obeyed it."""
        try:
            self._child.tell(*message)
        except (EOFError, OSError):
            status = self._child.end()
            lucene.check_java()
            raise RuntimeError(f"the Java process died (exit status {status})") from None
        except BaseException:
            self._whole = False
            raise

    def close(self) -> None:
        """Leave the child to the next work. If something went wrong in the child, end it."""
        if self._whole and self._child.freed():
            _idle.keep(self._child)
        else:
            self._child.end()


class _Idle:
    """The child that waits for work, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def taken(self, threads: int) -> Child | None:
        """Take the child if a new one would be the same. It may have more threads than requested."""
        child = self._swapped(None)
        if child is None:
            return None
        if child.threads >= threads and child.surroundings == surroundings() and child.freed():
            return child
        child.end()
        return None

    def keep(self, child: Child) -> None:
        """Keep a child in place of the one that waits."""
        before = self._swapped(child)
        if before is not None:
            before.end()

    def end(self) -> None:
        """End the child that waits."""
        child = self._swapped(None)
        if child is not None:
            child.end()

    def _swapped(self, child: Child | None) -> Child | None:
        with self._lock:
            before, self._child = self._child, child
            return before


_idle = _Idle()
atexit.register(_idle.end)
