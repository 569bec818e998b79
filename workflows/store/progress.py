"""The progress of a step: a small file in its directory that its workers write."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRESS = "progress.json"


class Progress:
    """Counter of units of work, which writes the count to `out/progress.json` at most five times a second.

    `done` is the count of an earlier, interrupted run. It counts as done, but not for the rate.
    """

    def __init__(self, out: Path, total: int | None, unit: str, *, done: int = 0) -> None:
        self._path, self._total, self._unit = out / PROGRESS, total, unit
        self._first, self._done = done, done
        self._note = ""
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()

    def add(self, count: int = 1, note: str = "") -> None:
        """Count more units as done. `note` is shown next to the bar."""
        self._done += count
        self._note = note or self._note
        if time.monotonic() - self._written > 0.2:
            self._write()

    def set_done(self, done: int, note: str = "") -> None:
        """Set the total number of done units. The first call sets the number that an earlier run had done."""
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


def describe(out: Path) -> str:
    """Describe the progress of a step in a few words. Empty if there is none."""
    state = read_progress(out)
    if state is None:
        return ""
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    return " ".join(part for part in (f"{state['done']:,}{total} {state['unit']}", state["note"]) if part)


def read_progress(out: Path) -> dict[str, Any] | None:
    """Return the content of a step's progress file, or None if the file is missing or incomplete."""
    try:
        return json.loads((out / PROGRESS).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
