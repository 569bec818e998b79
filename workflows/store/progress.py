"""The progress of a step: a small file in its directory that its workers write, and the bars that are drawn from it."""

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

PROGRESS = "progress.json"


class Progress:
    """Counts units of work and writes the count to `out/progress.json`, at most five times a second.

    `done` is what an earlier, interrupted run had done: it counts as done, but not for the rate.
    """

    def __init__(self, out: Path, total: int | None, unit: str, *, done: int = 0) -> None:
        self._path, self._total, self._unit = out / PROGRESS, total, unit
        self._first, self._done = done, done
        self._note = ""
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write()

    def add(self, count: int = 1, note: str = "") -> None:
        """Count more units as done; `note` is shown beside the bar."""
        self._done += count
        self._note = note or self._note
        if time.monotonic() - self._written > 0.2:
            self._write()

    def set_done(self, done: int, note: str = "") -> None:
        """Set how many units are done in all. The first call says how many an earlier run had done."""
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
        temporary = self._path.with_name(f".{PROGRESS}")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._path)
        self._written = now


class ProgressView:
    """A bar for each running step: redrawn in place on a terminal, printed every 15 seconds elsewhere.

    Other lines must go through `print`, so that they do not run into the bars.
    """

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Path, float]] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._terminal, self._drawn = sys.stderr.isatty(), 0
        self._thread = threading.Thread(target=self._draw_until_stopped, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._write("")

    @contextmanager
    def step(self, title: str, out: Path) -> Iterator[None]:
        """Show a step's bar while the block runs."""
        (out / PROGRESS).unlink(missing_ok=True)
        with self._lock:
            self._steps[title] = out, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._steps[title]

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        with self._lock:
            self._write(f"{line}\n")

    def _draw_until_stopped(self) -> None:
        interval = 0.25 if self._terminal else 15.0
        next_draw = time.monotonic() + interval
        while not self._stop.wait(0.25):
            if time.monotonic() < next_draw:
                continue
            next_draw = time.monotonic() + interval
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        """Print all bars; on a terminal, over the last ones."""
        width = shutil.get_terminal_size((100, 24)).columns - 1
        states = [(title, read_progress(out), began) for title, (out, began) in self._steps.items()]
        bars = [bar(title, state, time.monotonic() - began, width) for title, state, began in states if state]
        if bars:
            self._write("\n".join(bars) + ("" if self._terminal else "\n"))
            self._drawn = len(bars) if self._terminal else 0

    def _write(self, text: str) -> None:
        """Print a text over the last bars."""
        up = f"\033[{self._drawn - 1}A" if self._drawn > 1 else ""
        print(f"{up}\r\033[J" if self._drawn else "", text, sep="", end="", file=sys.stderr, flush=True)
        self._drawn = 0


def bar(title: str, state: dict[str, Any], seconds: float, width: int) -> str:
    """A progress bar in one line. Rate and time left are those of this run's own work."""
    own, own_seconds = state["done"] - state["first"], state["seconds"]
    note = f" {state['note']}" if state["note"] else ""
    line = tqdm.format_meter(
        n=state["done"], total=state["total"], elapsed=seconds, initial=state["first"], prefix=title,
        rate=own / own_seconds if own and own_seconds else None, unit=f" {state['unit']}", ncols=width - len(note),
    )  # fmt: skip
    return line + note


def describe(out: Path) -> str:
    """The progress of a step in a few words; empty if there is none."""
    state = read_progress(out)
    if state is None:
        return ""
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    return " ".join(part for part in (f"{state['done']:,}{total} {state['unit']}", state["note"]) if part)


def read_progress(out: Path) -> dict[str, Any] | None:
    """The content of a step's progress file; None if there is none, or not a complete one."""
    try:
        return json.loads((out / PROGRESS).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
