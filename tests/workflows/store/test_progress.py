"""The progress of a step: what its workers write, and the bars that are drawn from it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from workflows.store import progress
from workflows.store.forecast import Forecast
from workflows.store.progress import PROGRESS, Progress, ProgressView, bar, line, read_progress


def state(out: Path) -> dict[str, Any]:
    """The content of the progress file, without the time."""
    found = dict(json.loads((out / PROGRESS).read_text()))
    assert found.pop("seconds") >= 0
    return found


def test_units_are_counted(tmp_path: Path) -> None:
    with Progress(tmp_path, 10, "texts") as counted:
        assert state(tmp_path) == {"done": 0, "first": 0, "total": 10, "unit": "texts", "note": ""}
        for _ in range(10):
            counted.add(note="loss 0.5")
        counted.add(0)
    assert state(tmp_path) == {"done": 10, "first": 0, "total": 10, "unit": "texts", "note": "loss 0.5"}
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]


def test_the_last_count_is_written_though_the_work_failed(tmp_path: Path) -> None:
    def work() -> None:
        with Progress(tmp_path, 10, "texts", done=4) as counted:
            counted.add(2)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        work()
    assert (state(tmp_path)["first"], state(tmp_path)["done"]) == (4, 6)


def test_the_first_call_of_set_done_says_what_an_earlier_run_had_done(tmp_path: Path) -> None:
    """A training knows its earlier updates only when it has read its checkpoint."""
    counted = Progress(tmp_path, 100, "steps")
    counted.set_done(40)
    assert (state(tmp_path)["first"], state(tmp_path)["done"]) == (40, 40)
    counted.set_done(41, "loss 0.5")
    counted._write()
    assert (state(tmp_path)["first"], state(tmp_path)["done"], state(tmp_path)["note"]) == (40, 41, "loss 0.5")


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


@pytest.mark.parametrize("text", [None, "", '{"done": 1'])
def test_a_missing_or_half_written_file_gives_no_progress(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / PROGRESS).write_text(text)
    assert read_progress(tmp_path) is None


class Clock:
    """A stop event and clock: `looks` waits pass, of 20 seconds each."""

    def __init__(self, looks: int) -> None:
        self.looks, self.now = looks, 0.0

    def wait(self, seconds: float) -> bool:
        self.looks, self.now = self.looks - 1, self.now + 20
        return self.looks < 0

    def monotonic(self) -> float:
        return self.now


def half_done(out: Path) -> Path:
    """A step's directory with a progress of 5 of 10."""
    out.mkdir()
    with Progress(out, 10, "texts") as counted:
        counted.add(5)
    return out


def drawing(monkeypatch: pytest.MonkeyPatch, live: bool, looks: int, *titles: str, root: Path) -> ProgressView:
    """A view of some steps that draws `looks` times, in this thread."""
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: live, raising=False)
    clock, view = Clock(looks), ProgressView()
    monkeypatch.setattr(progress.time, "monotonic", clock.monotonic)
    view._stop = clock  # type: ignore[assignment]
    view._steps = {title: (half_done(root / title), 0.0) for title in titles}
    return view


@pytest.mark.parametrize("live", [True, False])
def test_the_view_of_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """On a terminal one line that is redrawn and erased at the end; elsewhere a new line after 20 and 40 seconds."""
    view = drawing(monkeypatch, live, 3, "vectors", root=tmp_path)
    view._draw_until_stopped()
    view.print("vectors: done")
    said = capsys.readouterr().err
    assert said.count("5/10") == (3 if live else 2)
    assert said.count("\n") == (1 if live else 3)
    assert said.endswith("\r\033[Jvectors: done\n" if live else "\nvectors: done\n")


@pytest.mark.parametrize("live", [True, False])
def test_the_view_of_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], live: bool
) -> None:
    """Two lines, both redrawn."""
    view = drawing(monkeypatch, live, 2, "vectors", "training", root=tmp_path)
    view._draw_until_stopped()
    view._write("")
    said = capsys.readouterr().err
    assert said.count("5/10") == 4
    assert said.count("\033[1A\r\033[J") == (2 if live else 0)
    assert said.count("\n") == (2 if live else 4)


def test_a_log_has_no_control_characters_and_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looks every 20 seconds for 400: lines after 20, 40, 80, 160, 280 and 400 seconds."""
    view = drawing(monkeypatch, False, 20, "vectors", root=tmp_path)
    view._draw_until_stopped()
    view._write("")
    said = capsys.readouterr().err
    assert said.count("\n") == 6
    assert "\r" not in said
    assert "\033" not in said
    assert said.splitlines()[0].startswith("vectors: 5/10 texts")


def test_the_whole_run_s_time_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = drawing(monkeypatch, True, 1, "vectors", root=tmp_path)
    view._forecast = Forecast({"vectors": 100.0, "later": 600.0})
    (tmp_path / "vectors" / PROGRESS).write_text(
        json.dumps({"done": 5, "first": 0, "total": 10, "unit": "texts", "note": "", "seconds": 60.0})
    )
    view._draw_until_stopped()
    assert capsys.readouterr().err.splitlines()[-1] == "whole run: about 11 min left"


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
        with ProgressView() as view, view.step("x", tmp_path):
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
    view = drawing(monkeypatch, live, 2, "training", root=tmp_path)
    view.wait("training", "process 7 on vm")
    view._draw_until_stopped()
    assert "training (in process 7 on vm): " in capsys.readouterr().err
    assert read_progress(tmp_path / "training") is not None
    view.start("training")
    said = capsys.readouterr().err
    assert said.endswith("training: stopped before at 5/10 texts; what was not saved by then is done again\n")
    assert read_progress(tmp_path / "training") is None
    half_done(tmp_path / "again").joinpath(PROGRESS).rename(tmp_path / "training" / PROGRESS)
    view._stop = Clock(2)  # type: ignore[assignment]
    view._draw_until_stopped()
    assert "process 7" not in capsys.readouterr().err
