"""A command in processes of its own: how long it takes, and how much memory at most."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def watched(command: list[str], **options: Any) -> tuple[float, int]:
    """Run a command: its seconds, and the most memory of it and all processes below it, in bytes."""
    began = time.monotonic()
    with subprocess.Popen(command, **options) as process, Peak(process.pid) as peak:
        assert process.wait() == 0
    return time.monotonic() - began, peak.bytes


class Peak:
    """The largest memory of a process and its descendants, looked at twice a second.

    It is the proportional set size: what processes share is counted once.
    """

    def __init__(self, pid: int) -> None:
        self.bytes, self._pid, self._stop = 0, pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.bytes = max(self.bytes, sum(map(_pss, _tree(self._pid))))


def _tree(root: int) -> list[int]:
    """A process and everything below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found, front = [], [root]
    while front:
        pid = front.pop()
        found.append(pid)
        front += parents.get(pid, [])
    return found


def _pss(pid: int) -> int:
    try:
        lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
