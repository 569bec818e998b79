"""Steps of no weight, importable from other processes, for tests of the graph."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from sparring.components.config import Config, UserError
from sparring.components.files import replacing
from sparring.workflows.store.dag import Description, Step, step


def write(out: Path, machine: Any, *, text: str, size: int = 0) -> dict[str, Any]:
    """One file with a text, another of a size, and a line for each call."""
    _called(out)
    (out / "text").write_text(text)
    (out / "heavy").write_bytes(bytes(size))
    return {"characters": len(text)}


def follow(out: Path, machine: Any, *, text: str, before: Path | None) -> None:
    """A step that may carry on from another of its kind."""
    write(out, machine, text=text)


def join(out: Path, machine: Any, *, parts: list[Path], options: Any) -> None:
    """The texts of other steps, one after the other, of which nothing may have been dropped."""
    _called(out)
    assert all((part / "heavy").exists() for part in parts)
    (out / "text").write_text(" ".join((part / "text").read_text() for part in parts))
    (out / "heavy").touch()


def mapped(out: Path, machine: Any, *, by_name: dict[str, Path | None]) -> None:
    """Steps inside a mapping."""
    (out / "text").write_text(" ".join(sorted(f"{name}={path and path.name}" for name, path in by_name.items())))


@Description(version=2)
def newer(out: Path, machine: Any, *, text: str) -> None:
    """A step whose results are others than they were."""


def _refuses(before: Path, most: int) -> None:
    with (before / "asked").open("a") as file:
        file.write("once\n")
    if (length := len((before / "text").read_text())) > most:
        raise UserError(f"{length} characters; accepted: {most}", key="before", code="out-of-range")


@Description(refuses=_refuses)
def refuse(out: Path, machine: Any, *, before: Path, after: Path, most: int) -> None:
    """A step that takes no text longer than so many characters before it, whatever is after it."""
    (out / "text").write_text((before / "text").read_text())


def fail(out: Path, machine: Any, *, kind: str, until: str) -> None:
    """Fail after half of the work, until a file is there."""
    _called(out)
    with replacing(out / "half") as path:
        path.write_text("half")
    if Path(until).exists():
        return
    if kind == "user":
        raise UserError("k: 9 documents are asked for; accepted: 1 to 8")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "silent":
        raise AssertionError
    raise RuntimeError("the long way to it\n\nthe reason\n")


def wait(out: Path, machine: Any, *, started: str, go: str) -> None:
    """Say that it began, and wait until it may end."""
    _called(out)
    Path(started).touch()
    while not Path(go).exists():
        time.sleep(0.01)


def die(out: Path, machine: Any, *, once: str) -> None:
    """Leave half of a file and be killed, the first time."""
    _called(out)
    if Path(once).exists():
        return
    Path(once).touch()
    with replacing(out / "whole") as path:
        path.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def _called(out: Path) -> None:
    with (out / "calls").open("a") as file:
        file.write("called\n")


def calls(out: Path) -> int:
    """How often a step was called."""
    return len((out / "calls").read_text().splitlines()) if (out / "calls").exists() else 0


class Options(Config):
    """A config among a step's inputs."""

    number: int
    names: list[str] = []


def chain(*, text: str = "a", second: str = "b", number: int = 1) -> dict[str, Step]:
    """Two beginnings, their join, a join of that, and an end that stands on one beginning alone."""
    a, b = step("a", write, text=text), step("b", write, text=second)
    ab = step("ab", join, parts=[a, b], options=Options(number=number))
    end = step("end", join, parts=[ab], options=None)
    aside = step("aside", join, parts=[b], options=None)
    return {"a": a, "b": b, "ab": ab, "end": end, "aside": aside}
