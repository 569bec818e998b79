"""A child process that does work which must not be done in the driver or in a worker.

A fork would carry over the threads of Ray and torch. A fresh start by `multiprocessing` would run this process's main
module again, which in one of Ray's workers imports Ray.
"""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from sparring.components import progress
from sparring.components.config import UserError

IDLE_SECONDS = 30.0
"""Seconds without work after which a child ends, with Java's memory."""

INHERITED = re.compile("_?JAVA|JDK|CLASSPATH|LD_|PATH|PYTHON")
"""Prefixes of the variables that Java, Python or the linker read. Libraries set further variables during a run."""


class Child:
    """A process that works for one worker after another."""

    def __init__(self, threads: int) -> None:
        self.threads, self.surroundings = threads, surroundings()
        self._pipe, child_end = multiprocessing.Pipe()
        code = "import sys; sys.path[:] = sys.argv[3:]; from sparring.workflows.distributed import child; "
        code += "child.serve(*sys.argv[1:3])"
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
