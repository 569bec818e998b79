"""What is shown of a run while it runs."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.workflows.running import view as views
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.view import ProgressView, bar, line, progress_view
from sparring.workflows.store.progress import PROGRESS, Progress, read_progress


def test_a_bar_shows_the_rate_of_this_run_alone() -> None:
    """60 of 100 are done, 20 of them by this run in 10 of its 15 seconds: 2 a second, so 20 seconds are left."""
    about = {"done": 60, "first": 40, "total": 100, "unit": "texts", "note": "loss 0.5", "seconds": 10.0}
    line = bar("[1/3] vectors", about, 15.0, 100)
    assert line.startswith("[1/3] vectors:  60%|")
    assert line.endswith("| 60/100 [00:15<00:20,  2.00 texts/s] loss 0.5")
    assert len(line) == 100


def test_a_bar_before_anything_is_done_and_without_a_total() -> None:
    about: dict[str, Any] = {"done": 0, "first": 0, "total": 100, "unit": "texts", "note": "", "seconds": 0.0}
    assert "0/100" in bar("x", about, 0.0, 80)
    assert "?" in bar("x", about, 5.0, 80)  # the time left is unknown
    assert bar("x", {**about, "total": None, "done": 7}, 1.0, 80).startswith("x: 7 texts [00:01,")


def half_done(out: Path) -> Path:
    """A step's directory with a progress of 5 of 10."""
    out.mkdir()
    with Progress(out, 10, "texts") as counted:
        counted.add(5)
    return out


class Viewed(ProgressView):
    """A view of some steps that looks when it is told to, every 20 seconds by its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, live: bool, *titles: str, root: Path) -> None:
        monkeypatch.setattr(views.sys.stderr, "isatty", lambda: live, raising=False)
        super().__init__()
        self.now = 0.0
        monkeypatch.setattr(views.time, "monotonic", lambda: self.now)
        self._steps = {title: (half_done(root / title), 0.0) for title in titles}

    def looks(self, times: int) -> None:
        for _ in range(times):
            self.now += 20
            self.look()


@pytest.mark.parametrize("live", [True, False])
def test_the_view_of_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """On a terminal one line that is redrawn and erased at the end; elsewhere a new line after 20 and 40 seconds."""
    view = Viewed(monkeypatch, live, "vectors", root=tmp_path)
    view.looks(3)
    view.print("vectors: done")
    said = capsys.readouterr().err
    assert said.count("5/10") == (3 if live else 2)
    assert said.count("\n") == (1 if live else 3)
    assert said.endswith("\r\033[Jvectors: done\n" if live else "\nvectors: done\n")


@pytest.mark.parametrize(
    ("live", "width", "said"),
    [
        (True, 16, "done (1:00 left)"),
        (True, 15, "done (1:00)"),
        (True, 2, "done"),
        (False, 2, "done (1:00 left)"),
    ],
)
def test_a_narrow_terminal_gets_a_shorter_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool, width: int, said: str
) -> None:
    monkeypatch.setattr(views.sys.stderr, "isatty", lambda: live, raising=False)
    monkeypatch.setattr(views, "columns", lambda: width)
    ProgressView().print("done (1:00 left)", "done (1:00)", "done")
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize("live", [True, False])
def test_the_view_of_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """Two lines, both redrawn."""
    view = Viewed(monkeypatch, live, "vectors", "training", root=tmp_path)
    view.looks(2)
    view._write("")
    said = capsys.readouterr().err
    assert said.count("5/10") == 4
    assert said.count("\033[1A\r\033[J") == (2 if live else 0)
    assert said.count("\n") == (2 if live else 4)


def test_a_log_has_no_control_characters_and_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looks every 20 seconds for 400: lines after 20, 40, 80, 160, 280 and 400 seconds."""
    view = Viewed(monkeypatch, False, "vectors", root=tmp_path)
    view.looks(20)
    view._write("")
    said = capsys.readouterr().err
    assert said.count("\n") == 6
    assert "\r" not in said
    assert "\033" not in said
    assert said.splitlines()[0].startswith("vectors: 5/10 texts")


def test_the_whole_run_s_time_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = Viewed(monkeypatch, True, "vectors", root=tmp_path)
    view._forecast = Forecast({"vectors": 100.0, "later": 600.0}, spread=(0.5, 2.0))
    (tmp_path / "vectors" / PROGRESS).write_text(
        json.dumps({"done": 5, "first": 0, "total": 10, "unit": "texts", "note": "", "seconds": 60.0})
    )
    view.looks(1)
    assert capsys.readouterr().err.splitlines()[-1] == "whole run: 6 to 21 min left"


def test_a_step_in_plain_words() -> None:
    about = {"done": 500, "first": 0, "total": 4950, "unit": "texts", "note": "loss 0.5", "seconds": 10.0}
    assert line("[3/9] vectors", about, 11.0) == "[3/9] vectors: 500/4,950 texts, 50 texts/s, 01:29 left, loss 0.5"
    resumed = line("x", {**about, "first": 250, "note": ""}, 11.0)
    assert resumed == "x: 500/4,950 texts, 25 texts/s, 02:58 left, resumed at 250"
    assert line("x", None, 65.0) == "x: running for 01:05"
    assert line("x", {**about, "total": None, "done": 0, "note": ""}, 1.0) == "x: 0 texts"


def test_the_view_stops_with_its_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = {"done": 9, "first": 0, "total": 400, "unit": "updates", "note": "", "seconds": 60.0}
    (tmp_path / PROGRESS).write_text(json.dumps(left))  # by a killed run
    before = threading.active_count()

    def work() -> None:
        with progress_view() as view, view.step("x", tmp_path):
            view.start("x")
            assert not (tmp_path / PROGRESS).exists()
            assert threading.active_count() == before + 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert threading.active_count() == before
    assert capsys.readouterr().err == "x: stopped before at 9/400 updates; what was not saved by then is done again\n"


@pytest.mark.parametrize("live", [True, False])
def test_what_another_driver_has_done_is_marked_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """Until this one starts the step: then it says what the other has left."""
    view = Viewed(monkeypatch, live, "training", root=tmp_path)
    view.wait("training", "process 7 on vm")
    view.looks(2)
    assert "training (in process 7 on vm): " in capsys.readouterr().err
    assert read_progress(tmp_path / "training") is not None
    view.start("training")
    said = capsys.readouterr().err
    assert said.endswith("training: stopped before at 5/10 texts; what was not saved by then is done again\n")
    assert read_progress(tmp_path / "training") is None
    half_done(tmp_path / "again").joinpath(PROGRESS).rename(tmp_path / "training" / PROGRESS)
    view.looks(2)
    assert "process 7" not in capsys.readouterr().err


def test_a_notebook_has_an_area_that_is_drawn_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines go to the cell's output, not to stderr, which notebooks colour as errors."""
    areas: list[str] = []

    class Area:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            areas.append(content["text/plain"])

    monkeypatch.setattr(views, "notebook_area", Area)
    view = Viewed(monkeypatch, False, "vectors", root=tmp_path)
    view.looks(2)
    view.print("vectors: done")
    assert ["5/10" in text for text in areas] == [True, True, False]
    assert capsys.readouterr() == ("vectors: done\n", "")


def test_a_process_without_a_notebook_has_no_area(monkeypatch: pytest.MonkeyPatch) -> None:
    assert views.notebook_area() is None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert views.notebook_area() is None  # IPython on a terminal
