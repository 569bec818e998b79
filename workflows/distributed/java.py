"""Java in a child process. Java cannot be stopped inside a process, so it never starts in the driver or in a worker.

Starting Java takes longer than the work of many steps. So a child that has finished stays for a while, for the next
work of the same process.
"""

import atexit
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sparring.components import progress
from sparring.components.config import UserError
from sparring.components.retrieval import lucene

IDLE_SECONDS = 30.0
"""Seconds without work after which a child ends, with Java's memory."""

INHERITED = re.compile("_?JAVA|JDK|CLASSPATH|LD_|PATH|PYTHON")
"""Prefixes of the variables that Java, Python or the linker read. Libraries set further variables during a run."""


class InChild:
    """A worker (`workflows.distributed.shards`) whose work is done in a child process. Java has started when the
    constructor returns."""

    def __init__(self, *, work: Callable[..., Any], threads: int, **constructor: Any) -> None:
        self._child, self._whole = _idle.taken(threads) or _Child(threads), True
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


class _Child:
    """A process that works for one worker after another."""

    def __init__(self, threads: int) -> None:
        self.threads, self.surroundings = threads, surroundings()
        self._pipe, child_end = multiprocessing.Pipe()
        # A fork would carry over Ray's and torch's threads; multiprocessing's own fresh start would run this process's
        # main module again, which in one of Ray's workers imports Ray.
        code = "import sys; sys.path[:] = sys.argv[3:]; from sparring.workflows.distributed import java; "
        code += "java.serve(*sys.argv[1:3])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(child_end.fileno()), str(IDLE_SECONDS), *sys.path],
            pass_fds=[child_end.fileno()],
            stdin=subprocess.PIPE,
        )
        child_end.close()

    def tell(self, *message: Any) -> None:
        """Send a message, wait until it is done, and report the child's progress. EOFError or OSError if the child has
        died."""
        self._pipe.send(message)
        while isinstance(failure := self._pipe.recv(), int):
            progress.report(failure)
        if failure is not None:
            raise failure

    def freed(self) -> bool:
        """Check whether the child lives, and make it free its worker and wait for the next."""
        try:
            self.tell()
        except Exception:
            return False
        return True

    def end(self) -> int:
        """End the process, and return its exit status."""
        self._pipe.close()
        status = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return status


def surroundings() -> tuple[Any, ...]:
    """Return what a process inherits that Java or Python reads."""
    inherited = {name: value for name, value in os.environ.items() if INHERITED.match(name)}
    with suppress(FileNotFoundError):  # the current folder was deleted meanwhile
        return list(sys.path), inherited, os.getcwd()
    return list(sys.path), inherited


class _Idle:
    """The child that waits for work, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def taken(self, threads: int) -> _Child | None:
        """Take the child if a new one would be the same. It may have more threads than requested."""
        child = self._swapped(None)
        if child is None:
            return None
        if child.threads >= threads and child.surroundings == surroundings() and child.freed():
            return child
        child.end()
        return None

    def keep(self, child: _Child) -> None:
        """Keep a child in place of the one that waits."""
        before = self._swapped(child)
        if before is not None:
            before.end()

    def end(self) -> None:
        """End the child that waits."""
        child = self._swapped(None)
        if child is not None:
            child.end()

    def _swapped(self, child: _Child | None) -> _Child | None:
        with self._lock:
            before, self._child = self._child, child
            return before


_idle = _Idle()
atexit.register(_idle.end)


def serve(handle: str, idle_seconds: str) -> None:
    """Run the child process. Make the worker that it is sent, give the worker each task, and free it at an empty
    message.

    Answer each message with None or the error. Before that, send the units that are done. End after `idle_seconds`
    without a worker.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # end without a traceback: the parent is interrupted too, and reports it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    pipe = Connection(int(handle))
    work: Any = None
    while work is not None or pipe.poll(float(idle_seconds)):
        try:
            sent = pipe.recv()
        except EOFError:
            return
        try:
            if not sent:
                if hasattr(work, "close"):
                    work.close()
                work = None
            elif work is None:
                make, constructor = sent
                work = make(**constructor)
            else:
                with progress.listening(pipe.send):
                    work(*sent)
            pipe.send(None)
        except UserError as error:
            pipe.send(error)
        except Exception as error:
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _die_with_parent() -> None:
    """Exit when the parent process has died."""
    os.read(0, 1)  # nothing is ever written there; it closes when the parent ends
    os._exit(1)
