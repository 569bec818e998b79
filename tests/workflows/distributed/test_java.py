"""Work in a child process: one after another, in the same process where nothing went wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.components import progress
from sparring.components.config import UserError
from sparring.workflows.distributed import child, java
from sparring.workflows.distributed.java import InChild


class Works:
    """Writes which process it is in; or goes wrong."""

    def __init__(self, *, threads: int, fault: str = "") -> None:
        self._fault = fault
        if fault == "not made":
            raise UserError("no such index")

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        progress.report(3)
        progress.report(4)
        if self._fault == "exit":
            os._exit(7)
        if self._fault == "mistake":
            raise UserError("what is wrong")
        if self._fault == "error":
            raise OSError("no space")
        path.write_text(str(os.getpid()))

    def close(self) -> None:
        if self._fault == "not freed":
            raise OSError("cannot be closed")


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    java._idle.end()
    yield
    java._idle.end()


def process_of(tmp_path: Path, *, threads: int = 1, fault: str = "") -> int:
    """The process in which a piece of work is done."""
    works = InChild(work=Works, threads=threads, fault=fault)
    works({}, tmp_path / "file")
    works.close()
    return int((tmp_path / "file").read_text())


def test_progress_of_the_child_is_heard_here(tmp_path: Path) -> None:
    units: list[int] = []
    with progress.listening(units.append):
        process_of(tmp_path)
    assert units == [3, 4]


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("exit", RuntimeError, r"the Java process died \(exit status 7\)"),
        ("mistake", UserError, "^what is wrong$"),
        ("error", RuntimeError, "OSError: no space"),
    ],
)
def test_what_happens_in_the_child_is_heard_here(tmp_path: Path, fault: str, kind: type[Exception], says: str) -> None:
    """And nothing else is done in that process."""
    before = process_of(tmp_path)
    works = InChild(work=Works, threads=1, fault=fault)
    with pytest.raises(kind, match=says):
        works({}, tmp_path / "file")
    works.close()
    assert process_of(tmp_path) != before


def test_a_worker_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    before = process_of(tmp_path)
    with pytest.raises(UserError, match=r"^no such index$"):
        InChild(work=Works, threads=1, fault="not made")
    assert process_of(tmp_path) != before


def test_one_process_does_one_work_after_another(tmp_path: Path) -> None:
    first = process_of(tmp_path)
    assert first != os.getpid()
    assert process_of(tmp_path) == first
    both = [InChild(work=Works, threads=1) for _ in range(2)]  # at once: in two
    for number, works in enumerate(both):
        works({}, tmp_path / str(number))
    assert len({first, *(int((tmp_path / str(number)).read_text()) for number in range(2))}) == 2
    for works in both:
        works.close()
    assert process_of(tmp_path) == int((tmp_path / "1").read_text())  # the last that came free; the other has ended


def test_another_process_where_it_would_start_otherwise_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [process_of(tmp_path), process_of(tmp_path, threads=2)]
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # what Java does not heed
    assert process_of(tmp_path, threads=2) == process_of(tmp_path, threads=1) == seen[-1]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xint")
    seen.append(process_of(tmp_path, threads=2))
    monkeypatch.chdir(tmp_path)
    seen.append(process_of(tmp_path, threads=2))
    assert process_of(tmp_path, fault="not freed", threads=2) == seen[-1]
    seen.append(process_of(tmp_path, threads=2))
    assert len(set(seen)) == 5


def test_a_process_without_work_ends_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "IDLE_SECONDS", 0.05)
    first = process_of(tmp_path)
    waiting = java._idle._child
    assert waiting is not None
    while waiting._process.poll() is None:
        time.sleep(0.01)
    assert process_of(tmp_path) != first
