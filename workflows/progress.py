"""How far a step is: one small file in its directory, written by whoever works and read by the live view."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

NAME = "progress.json"


class Progress:
    """Counts units of work into `out/progress.json`, at most five times a second.

    `done` counts from what an earlier, interrupted run left, so that the rate is that of this run alone.
    """

    def __init__(self, out: Path, total: int | None, unit: str, *, done: int = 0) -> None:
        self._path, self._total, self._unit = out / NAME, total, unit
        self._first, self._done = done, done
        self._note = ""
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write()

    def add(self, count: int = 1, note: str = "") -> None:
        """Count units as done; `note` is shown beside the bar."""
        self._done += count
        self._note = note or self._note
        if time.monotonic() - self._written > 0.2:
            self._write()

    def to(self, done: int, note: str = "") -> None:
        """Say how many units are done in all; the first time, how many an earlier run left."""
        if not self._written:
            self._first = self._done = done
        self.add(done - self._done, note)

    def _write(self) -> None:
        now = time.monotonic()
        self._began = self._began or now
        state = {
            "done": self._done,
            "first": self._first,
            "seconds": round(now - self._began, 2),
            "total": self._total,
            "unit": self._unit,
            "note": self._note,
        }
        temporary = self._path.with_name(f".{NAME}")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._path)
        self._written = now


@contextmanager
def shown(title: str, out: Path) -> Iterator[None]:
    """Show a step while it runs: a bar with rate and time left on a terminal, now and then a line elsewhere."""
    stop = threading.Event()
    (out / NAME).unlink(missing_ok=True)
    thread = threading.Thread(target=_show, args=(title, out, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _show(title: str, out: Path, stop: threading.Event) -> None:
    """Draw the bar until told to stop: in place on a terminal, a line now and then elsewhere."""
    live = sys.stderr.isatty()
    interval = 0.25 if live else 15.0
    began = time.monotonic()
    drawn, next_draw = False, began + interval
    while not stop.wait(0.25):
        state = _read(out)
        if state is None or time.monotonic() < next_draw:
            continue
        next_draw = time.monotonic() + interval
        width = shutil.get_terminal_size((100, 24)).columns - 1
        line = bar(title, state, time.monotonic() - began, width)
        print(f"\r{line:<{width}}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)
        drawn = live
    if drawn:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def bar(title: str, state: dict[str, Any], seconds: float, width: int) -> str:
    """One line: what, how far, rate and time left; both of this run's own work, from its first word on."""
    here, at_work = state["done"] - state["first"], state["seconds"]
    note = f" {state['note']}" if state["note"] else ""
    line = tqdm.format_meter(
        n=state["done"], total=state["total"], elapsed=seconds, initial=state["first"], prefix=title,
        rate=here / at_work if here and at_work else None, unit=f" {state['unit']}", ncols=width - len(note),
    )  # fmt: skip
    return line + note


def _read(out: Path) -> dict[str, Any] | None:
    try:
        return json.loads((out / NAME).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
