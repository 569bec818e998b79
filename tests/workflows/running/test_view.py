"""The display of a run while it runs."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.workflows.running import view as views
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.view import (
    Notebook,
    PhasesView,
    ProgressView,
    Terminal,
    bar,
    line,
    open_view,
    progress_view,
)
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.store.progress import PROGRESS, Progress, read_progress
from tests.support import steps

ABOUT: dict[str, Any] = {"done": 60, "first": 40, "total": 100, "unit": "texts", "note": "loss 0.5", "seconds": 10.0}


def test_a_bar_shows_the_rate_of_this_run_alone() -> None:
    """60 of 100 are done, 20 of them by this run in 10 seconds: 2 a second, so 20 seconds are left."""
    text = bar("vectors", ABOUT, 15.0, 100)
    assert text.startswith("vectors  ██████")
    assert text.endswith("   60%  60/100 texts  2 texts/s  20 s left  loss 0.5")


@pytest.mark.parametrize(
    ("width", "end"),
    [
        (80, "60/100 texts  2 texts/s  20 s left  loss 0.5"),
        (60, "60/100 texts  2 texts/s  20 s left"),
        (50, "60/100 texts  20 s left"),
        (40, "60/100 texts"),
        (12, "vectors  60/"),
    ],
)
def test_a_narrow_bar_has_less(width: int, end: str) -> None:
    text = bar("vectors", ABOUT, 15.0, width)
    assert text.endswith(end)
    assert len(text) <= width


def test_a_bar_before_anything_is_done_and_without_a_total() -> None:
    nothing = {**ABOUT, "done": 0, "first": 0, "note": "", "seconds": 0.0}
    assert bar("x", nothing, 5.0, 80).endswith("  0%  0/100 texts")
    assert bar("x", {**nothing, "total": None, "done": 7}, 1.0, 80) == "x  7 texts"
    assert bar("x", {**nothing, "total": 0}, 1.0, 80) == "x  0/0 texts"
    assert bar("x", None, 65.0, 80) == "x  1 min 05 s"


def test_a_terminal_without_blocks_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(encoding="ascii"))
    assert bar("x", ABOUT, 15.0, 80).isascii()
    assert "".join(mark for mark, _ in views.marks().values()).isascii()


def test_a_slow_rate_is_a_time_for_each() -> None:
    slow = {**ABOUT, "done": 12, "first": 2, "total": 20, "unit": "updates", "seconds": 250.0}
    assert views.rate_and_time_left(slow) == ("25 s per update", "3 min 20 s left")
    assert views.rate_and_time_left({**slow, "unit": "queries"})[0] == "25 s per query"
    assert views.rate_and_time_left({**slow, "done": 12_345_002})[0] == "49,380 updates/s"


def half_done(out: Path) -> Path:
    """A step's directory with a progress of 5 of 10."""
    out.mkdir()
    with Progress(out, 10, "texts") as counted:
        counted.add(5)
    return out


class Clock:
    """The view's clock, and the steps that run by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running: list[ExitStack] = []

    def begin(self, view: ProgressView, node: Step, root: Path) -> ExitStack:
        """Begin a step that is half done. Closing what is returned ends it."""
        stack = ExitStack()
        stack.enter_context(view.step(f"[1/3] {node.label}", node, half_done(root / node.label)))
        self.running.append(stack)
        return stack


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(views.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(views.shutil, "get_terminal_size", lambda _: os.terminal_size((100, 24)))
    monkeypatch.setenv("NO_COLOR", "1")
    return clock


@pytest.fixture
def nodes() -> list[Step]:
    """Two steps of one phase, and one of another."""
    with in_phase("warm-up"):
        first, second = (step(name, steps.write, text=name) for name in ("vectors", "training"))
    with in_phase("round 1"):
        third = step("measures", steps.write, text="measures")
    return [first, second, third]


def test_a_terminal_shows_phases_with_their_steps_folded(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str]
) -> None:
    view = PhasesView(Terminal(), nodes)
    first, second, third = nodes
    running = clock.begin(view, first, tmp_path)
    clock.now = 20.0
    view.look()
    drawn = capsys.readouterr().err
    assert [text.rstrip() for text in drawn.splitlines()] == [
        "▸ Warm-up    0 of 2 steps in 20 s",
        "    vectors  ████████████░░░░░░░░░░░░   50%  5/10 texts",
        "  Round 1    1 step",
        "  Whole run  0 of 3 steps, 20 s",
    ]
    running.close()
    view.done("[1/3] vectors", first, 20.0, executed=True, notes="a note", scores=["  BM25  RR@10 .500"])
    assert capsys.readouterr().err == "\033[3A\r\033[J  BM25  RR@10 .500\n"
    running = clock.begin(view, second, tmp_path)
    clock.now = 65.0
    running.close()
    view.done("[2/3] training", second, 45.0, executed=True, notes="", scores=[])
    assert capsys.readouterr().err == "✓ Warm-up    2 steps in 1 min 05 s (training 45 s)\n"
    clock.begin(view, third, tmp_path)
    view.look()
    assert capsys.readouterr().err.splitlines()[0] == "▸ Round 1    0 of 1 step in 0.0 s"
    view.close(failed=False)
    assert capsys.readouterr().err == "\033[2A\r\033[J"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_stops_says_how_far_its_phases_are(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    view = PhasesView(Terminal(), nodes)

    def fail() -> None:
        with view.step("[1/3] vectors", nodes[0], half_done(tmp_path / "vectors")):
            clock.now = 20.0
            raise error

    with pytest.raises(error):
        fail()
    view.close(failed=True)
    assert capsys.readouterr().err == "✗ Warm-up    0 of 2 steps in 20 s, stopped in vectors\n"


def test_a_terminal_has_no_more_lines_than_rows(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Phases that are far off are counted, and no line is wider than the terminal."""
    monkeypatch.setattr(views.shutil, "get_terminal_size", lambda _: os.terminal_size((30, 6)))
    nodes = []
    for number in range(9):
        with in_phase(f"round {number}"):
            nodes.append(step(f"a label that is long {number}", steps.write, text=str(number)))
    view = PhasesView(Terminal(), nodes)
    clock.begin(view, nodes[0], tmp_path)
    view.look()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 29
    assert lines[-2] == "  and 3 more phases"


def test_colours_are_the_terminal_s(
    tmp_path: Path, clock: Clock, nodes: list[Step], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR")
    view = PhasesView(Terminal(), nodes)
    clock.begin(view, nodes[0], tmp_path)
    view.look()
    assert capsys.readouterr().err.startswith("\033[36m▸\033[0m \033[1mWarm-up  \033[0m  0 of 2 steps")


@pytest.mark.parametrize(
    ("terminal", "term", "view"),
    [(True, "xterm", PhasesView), (True, "dumb", ProgressView), (False, "xterm", ProgressView)],
)
def test_only_a_terminal_that_can_be_redrawn_gets_phases(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, view: type[ProgressView]
) -> None:
    monkeypatch.setattr(views.sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", term)
    assert type(open_view([], None)) is view


def test_a_log_has_no_control_characters_and_few_lines(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str]
) -> None:
    """Looks every 20 seconds for 400: lines after 20, 40, 80, 160, 280 and 400 seconds."""
    view = ProgressView()
    running = clock.begin(view, nodes[0], tmp_path)
    for _ in range(20):
        clock.now += 20
        view.look()
    running.close()
    view.done("[1/3] vectors", nodes[0], 400.0, executed=True, notes="a note", scores=["  BM25  RR@10 .500"])
    view.close(failed=False)
    text = capsys.readouterr().err
    assert not re.search("[\r\033]", text)
    *progress, done, note, score = text.splitlines()
    assert len(progress) == 6
    assert progress[0].startswith("[1/3] vectors: 5/10 texts")
    assert done == "[1/3] vectors: done in 400.0 s  (6:40 since the start)"
    assert (note, score) == ("[1/3] vectors: a note", "  BM25  RR@10 .500")


@pytest.mark.parametrize("live", [True, False])
def test_the_whole_run_s_time_left_is_said(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    forecast = Forecast({"vectors": 100.0, "later": 600.0}, spread=(0.5, 2.0))
    view = PhasesView(Terminal(), nodes, forecast) if live else ProgressView(forecast)
    clock.begin(view, nodes[0], tmp_path)
    (tmp_path / "vectors" / PROGRESS).write_text(
        json.dumps({"done": 5, "first": 0, "total": 10, "unit": "texts", "note": "", "seconds": 60.0})
    )
    clock.now = 20.0
    view.look()
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(", 6 to 21 min left" if live else "; whole run: 6 to 21 min left")
    )


def test_a_step_in_plain_words() -> None:
    state = {"done": 500, "first": 0, "total": 4950, "unit": "texts", "note": "loss 0.5", "seconds": 10.0}
    assert line("[3/9] vectors", state, 11.0) == "[3/9] vectors: 500/4,950 texts, 50 texts/s, 1 min 29 s left, loss 0.5"
    resumed = line("x", {**state, "first": 250, "note": ""}, 11.0)
    assert resumed == "x: 500/4,950 texts, 25 texts/s, 2 min 58 s left, resumed at 250"
    assert line("x", None, 65.0) == "x: running for 1 min 05 s"
    assert line("x", {**state, "total": None, "done": 0, "note": ""}, 1.0) == "x: 0 texts"


def test_the_view_stops_with_its_block(tmp_path: Path, nodes: list[Step], capsys: pytest.CaptureFixture[str]) -> None:
    rest = {"done": 9, "first": 0, "total": 400, "unit": "updates", "note": "", "seconds": 60.0}
    (tmp_path / PROGRESS).write_text(json.dumps(rest))  # by a killed run
    before = threading.active_count()

    def work() -> None:
        with progress_view() as view, view.step("x", nodes[0], tmp_path):
            view.start("x")
            assert not (tmp_path / PROGRESS).exists()
            assert threading.active_count() == before + 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert threading.active_count() == before
    text = capsys.readouterr().err
    assert text == "x: stopped before at 9/400 updates; unsaved work is repeated\n"


@pytest.mark.parametrize("live", [True, False])
def test_what_another_driver_has_done_is_marked_as_its_own(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """Until this one starts the step: then it says what the other has left."""
    view = PhasesView(Terminal(), nodes) if live else ProgressView()
    clock.begin(view, nodes[0], tmp_path)
    view.wait("[1/3] vectors", "process 7 on vm")
    clock.now = 40.0
    view.look()
    assert "vectors (in process 7 on vm)" in capsys.readouterr().err
    assert read_progress(tmp_path / "vectors") is not None
    view.start("[1/3] vectors")
    text = capsys.readouterr().err
    assert text.endswith("vectors: stopped before at 5/10 texts; unsaved work is repeated\n")
    assert read_progress(tmp_path / "vectors") is None
    half_done(tmp_path / "again").joinpath(PROGRESS).rename(tmp_path / "vectors" / PROGRESS)
    clock.now = 200.0
    view.look()
    assert "process 7" not in capsys.readouterr().err


def test_a_notebook_has_an_area_that_is_drawn_anew(
    tmp_path: Path, clock: Clock, nodes: list[Step], capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines go to the cell's output, not to stderr, which notebooks colour as errors."""
    areas: list[str] = []
    update = lambda content, *, raw: areas.append(content["text/plain"])  # noqa: E731
    view = PhasesView(Notebook(SimpleNamespace(update=update)), nodes)
    clock.begin(view, nodes[0], tmp_path)
    view.look()
    view.done("x", nodes[0], 1.0, executed=True, notes="", scores=["  BM25  RR@10 .500"])
    assert ["5/10" in text for text in areas] == [True, False]
    assert capsys.readouterr() == ("  BM25  RR@10 .500\n", "")


def test_a_process_without_a_notebook_has_no_area(monkeypatch: pytest.MonkeyPatch) -> None:
    assert views.notebook_area() is None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert views.notebook_area() is None  # IPython on a terminal
