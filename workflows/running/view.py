"""What is shown of a run: the bars of its running steps and the time that is left."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparring.workflows.quantities import between
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.polling import repeated
from sparring.workflows.store.progress import PROGRESS, describe, read_progress

STARTED, FIRST, LONGEST = 2.0, 15.0, 120.0
"""Where there is no terminal: seconds after which a line says that a step is running, and how far it is. Then whenever
twice as much time has passed, and at least every two minutes."""


@contextmanager
def progress_view(forecast: Forecast | None = None) -> Iterator["ProgressView"]:
    """Draw a view until the block ends."""
    view = ProgressView(forecast)
    try:
        with repeated(0.25, view.look):
            yield view
    finally:
        view._write("")


class ProgressView:
    """The running steps and the time that is left: on a terminal and in a notebook a bar each, redrawn in place;
    elsewhere a line now and then, at growing intervals.

    Other lines must go through `print`, so that they do not run into the bars.
    """

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._steps: dict[str, tuple[Path, float]] = {}
        self._holders: dict[str, str] = {}
        self._forecast, self._due = forecast, dict[str, float]()
        self._lock = threading.Lock()
        self._terminal, self._drawn = sys.stderr.isatty(), 0
        self._area = None if self._terminal else notebook_area()

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
        """Return a step's title, with the other driver that is running it."""
        return f"{title} (in {self._holders[title]})" if title in self._holders else title

    def print(self, line: str, *shorter: str) -> None:
        """Print a line above the bars. Print the first of its `shorter` forms that fits if the terminal is narrow."""
        if self._terminal:
            line = next((form for form in (line, *shorter) if len(form) <= columns()), [line, *shorter][-1])
        with self._lock:
            self._write(f"{line}\n")

    def look(self) -> None:
        """Show what there is now."""
        with self._lock:
            (self._draw if self._terminal or self._area is not None else self._tell)()

    def time_left(self) -> str:
        """Describe the remaining time of the whole run. Empty if nothing was estimated."""
        if self._forecast is None or not self._forecast.total or self._forecast.over:
            return ""
        now = time.monotonic()
        running = {out.name: (now - began, read_progress(out)) for out, began in self._steps.values()}
        return f"{between(*self._forecast.left_between(running))} left"

    def _draw(self) -> None:
        """Print all bars over the last ones, and the run's time left."""
        width = columns()
        states = [(self._named(title), read_progress(out), began) for title, (out, began) in self._steps.items()]
        bars = [bar(title, state, time.monotonic() - began, width) for title, state, began in states if state]
        if bars and (time_left := self.time_left()):
            bars.append(f"whole run: {time_left}"[:width])
        if self._area is not None:
            self._area.update({"text/plain": "\n".join(bars)}, raw=True)
        elif bars:
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
            time_left = self.time_left()
            self._write(
                f"{line(self._named(title), state, seconds)}{f'; whole run: {time_left}' if time_left else ''}\n"
            )

    def _write(self, text: str) -> None:
        """Print a text over the last bars."""
        if self._area is not None:  # whose notebook colours what goes to stderr as an error
            self._area.update({"text/plain": ""}, raw=True)
            print(text, end="", flush=True)
            return
        up = f"\033[{self._drawn - 1}A" if self._drawn > 1 else ""
        print(f"{up}\r\033[J" if self._drawn else "", text, sep="", end="", file=sys.stderr, flush=True)
        self._drawn = 0


def notebook_area() -> Any:
    """Open an output area of the notebook that this process serves, which can be redrawn. None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal, or none
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)


def columns() -> int:
    """Return the width of a line: one less than the terminal has columns, or 99 without a terminal."""
    return shutil.get_terminal_size((100, 24)).columns - 1


def bar(title: str, state: dict[str, Any], seconds: float, width: int) -> str:
    """Format a progress bar in one line. Rate and remaining time are those of this run's own work."""
    count, seconds_run = state["done"] - state["first"], state["seconds"]
    note = f" {state['note']}" if state["note"] else ""
    line = tqdm.format_meter(
        n=state["done"],
        total=state["total"],
        elapsed=seconds,
        initial=state["first"],
        prefix=title,
        rate=count / seconds_run if count and seconds_run else None,
        unit=f" {state['unit']}",
        ncols=width - len(note),
    )
    return line + note


def line(title: str, state: dict[str, Any] | None, seconds: float) -> str:
    """Format progress in plain words for a log: `[3/9] vectors: 500/4,950 texts, 32.2 texts/s, 2:18 left`.

    For a resumed step, add how much was done before.
    """
    if state is None:
        return f"{title}: running for {tqdm.format_interval(seconds)}"
    count, unit = state["done"] - state["first"], state["unit"]
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    parts = [f"{state['done']:,}{total} {unit}"]
    if count > 0 and state["seconds"] > 0:
        rate = count / state["seconds"]
        parts.append(f"{rate:.3g} {unit}/s")
        if state["total"] is not None:
            parts.append(f"{tqdm.format_interval((state['total'] - state['done']) / rate)} left")
    parts += [f"resumed at {state['first']:,}"] if state["first"] else []
    parts += [state["note"]] if state["note"] else []
    return f"{title}: {', '.join(parts)}"
