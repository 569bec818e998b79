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

from workflows.quantities import about
from workflows.store.forecast import Forecast

PROGRESS = "progress.json"
STARTED, FIRST, LONGEST = 2.0, 15.0, 120.0
"""Where there is no terminal: seconds after which a line says that a step is running, and how far it is. Then whenever
twice as much time has passed, and at least every two minutes."""


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
    """The running steps and the time that is left: on a terminal a bar each, redrawn in place; elsewhere a line now and
    then, at growing intervals.

    Other lines must go through `print`, so that they do not run into the bars.
    """

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._steps: dict[str, tuple[Path, float]] = {}
        self._holders: dict[str, str] = {}
        self._forecast, self._due = forecast, dict[str, float]()
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
        with self._lock:
            self._steps[title] = out, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._steps[title]
                self._due.pop(title, None)
                self._holders.pop(title, None)

    def wait(self, title: str, holder: str) -> None:
        """Name the driver whose progress is shown until this one starts the step."""
        with self._lock:
            self._holders[title] = holder

    def start(self, title: str) -> None:
        """Show this driver's own progress. Of a step that was stopped before, say how far that was."""
        with self._lock:
            self._holders.pop(title, None)
            out, _ = self._steps[title]
        if before := describe(out):
            self.print(f"{title}: stopped before at {before}; what was not saved by then is done again")
        (out / PROGRESS).unlink(missing_ok=True)

    def _named(self, title: str) -> str:
        """A step's title, with the other driver that is running it."""
        return f"{title} (in {self._holders[title]})" if title in self._holders else title

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        with self._lock:
            self._write(f"{line}\n")

    def _draw_until_stopped(self) -> None:
        while not self._stop.wait(0.25):
            with self._lock:
                (self._draw if self._terminal else self._tell)()

    def time_left(self) -> str:
        """The whole run's time left, in words; empty where nothing was estimated."""
        if self._forecast is None or not self._forecast.total or self._forecast.over:
            return ""
        now = time.monotonic()
        left = self._forecast.left({o.name: (now - began, read_progress(o)) for o, began in self._steps.values()})
        return f"{about(left)} left"

    def _draw(self) -> None:
        """Print all bars over the last ones, and the run's time left."""
        width = shutil.get_terminal_size((100, 24)).columns - 1
        states = [(self._named(title), read_progress(out), began) for title, (out, began) in self._steps.items()]
        bars = [bar(title, state, time.monotonic() - began, width) for title, state, began in states if state]
        if bars and (left := self.time_left()):
            bars.append(f"whole run: {left}"[:width])
        if bars:
            self._write("\n".join(bars))
            self._drawn = len(bars)

    def _tell(self) -> None:
        """Print a line for each step that is due for one."""
        now = time.monotonic()
        for title, (out, began) in self._steps.items():
            seconds, state = now - began, read_progress(out)
            if seconds < self._due.get(title, STARTED):
                continue
            if seconds < FIRST:
                self._due[title] = FIRST
                self._write(f"{self._named(title)}: running\n")
                continue
            self._due[title] = min(2 * seconds, seconds + LONGEST)
            left = self.time_left()
            self._write(f"{line(self._named(title), state, seconds)}{f'; whole run: {left}' if left else ''}\n")

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


def line(title: str, state: dict[str, Any] | None, seconds: float) -> str:
    """The same in plain words, for a log: `[3/9] vectors: 500/4,950 texts, 32.2 texts/s, 2:18 left`; of a step that was
    resumed also how much was done before."""
    if state is None:
        return f"{title}: running for {tqdm.format_interval(seconds)}"
    own, unit = state["done"] - state["first"], state["unit"]
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    parts = [f"{state['done']:,}{total} {unit}"]
    if own > 0 and state["seconds"] > 0:
        rate = own / state["seconds"]
        parts.append(f"{rate:.3g} {unit}/s")
        if state["total"] is not None:
            parts.append(f"{tqdm.format_interval((state['total'] - state['done']) / rate)} left")
    parts += [f"resumed at {state['first']:,}"] if state["first"] else []
    parts += [state["note"]] if state["note"] else []
    return f"{title}: {', '.join(parts)}"


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
