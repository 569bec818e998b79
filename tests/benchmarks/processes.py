"""A command in processes of its own: how long it takes, and how much memory at most."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def watched(command: list[str], *, mapped: bool = True, **options: Any) -> tuple[float, Memory]:
    """Run a command: its seconds, and the memory of it and of all processes below it, with or without the pages of
    mapped files, which the system takes back when it needs them."""
    began = time.monotonic()
    with subprocess.Popen(command, **options) as process, Memory(process.pid, mapped=mapped) as memory:
        assert process.wait() == 0
    return time.monotonic() - began, memory


class Memory:
    """The memory of a process and its descendants, looked at twice a second.

    It is the proportional set size: what processes share is counted once.
    """

    def __init__(self, pid: int, *, mapped: bool = True) -> None:
        self._pid, self._stop, self._looks = pid, threading.Event(), list[tuple[float, int]]()
        self._mapped = mapped
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def peak(self, began: float = 0.0, ended: float = math.inf) -> int:
        """The most at any look between two times of the clock, in bytes; 0 without a look."""
        return max((size for moment, size in self._looks if began <= moment <= ended), default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self._looks.append((time.time(), sum(size_of(pid, mapped=self._mapped) for pid in below(self._pid))))


def size_of(pid: int, *, mapped: bool = True) -> int:
    """The memory of a process in bytes, with or without the pages of mapped files; 0 where it has ended."""
    kinds = ("Pss:",) if mapped else ("Pss_Anon:", "Pss_Shmem:")
    try:
        lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def below(root: int) -> list[int]:
    """A process and everything below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    descendants, front = [], [root]
    while front:
        pid = front.pop()
        descendants.append(pid)
        front += parents.get(pid, [])
    return descendants
