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


class View:
    """The steps that are under way: a bar each, drawn over and over on a terminal; elsewhere a line now and then.

    What is said beside goes through `say`, so that bars and sentences do not run into each other.
    """

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Path, float]] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._live, self._drawn = sys.stderr.isatty(), 0
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
        """Show a step while it runs."""
        (out / NAME).unlink(missing_ok=True)
        with self._lock:
            self._steps[title] = out, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._steps[title]

    def say(self, line: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._write(f"{line}\n")

    def _draw_until_stopped(self) -> None:
        interval = 0.25 if self._live else 15.0
        next_draw = time.monotonic() + interval
        while not self._stop.wait(0.25):
            if time.monotonic() < next_draw:
                continue
            next_draw = time.monotonic() + interval
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        """All bars, in the place of the last ones on a terminal."""
        width = shutil.get_terminal_size((100, 24)).columns - 1
        states = [(title, read(out), began) for title, (out, began) in self._steps.items()]
        bars = [bar(title, state, time.monotonic() - began, width) for title, state, began in states if state]
        if bars:
            self._write("\n".join(bars) + ("" if self._live else "\n"))
            self._drawn = len(bars) if self._live else 0

    def _write(self, text: str) -> None:
        """Print where the bars were."""
        up = f"\033[{self._drawn - 1}A" if self._drawn > 1 else ""
        print(f"{up}\r\033[J" if self._drawn else "", text, sep="", end="", file=sys.stderr, flush=True)
        self._drawn = 0


def bar(title: str, state: dict[str, Any], seconds: float, width: int) -> str:
    """One line: what, how far, rate and time left; both of this run's own work, from its first word on."""
    here, at_work = state["done"] - state["first"], state["seconds"]
    note = f" {state['note']}" if state["note"] else ""
    line = tqdm.format_meter(
        n=state["done"], total=state["total"], elapsed=seconds, initial=state["first"], prefix=title,
        rate=here / at_work if here and at_work else None, unit=f" {state['unit']}", ncols=width - len(note),
    )  # fmt: skip
    return line + note


def glance(out: Path) -> str:
    """How far a step is, in a few words; empty where it does not say."""
    state = read(out)
    if state is None:
        return ""
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    return " ".join(part for part in (f"{state['done']:,}{total} {state['unit']}", state["note"]) if part)


def read(out: Path) -> dict[str, Any] | None:
    """What a step's file says; None where it is not there, or not whole."""
    try:
        return json.loads((out / NAME).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
