"""The progress of a step: what its workers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.store.progress import PROGRESS, Progress, read_progress


def state(out: Path) -> dict[str, Any]:
    """The content of the progress file, without the time."""
    record = dict(json.loads((out / PROGRESS).read_text()))
    assert record.pop("seconds") >= 0
    return record


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


@pytest.mark.parametrize("text", [None, "", '{"done": 1'])
def test_a_missing_or_half_written_file_gives_no_progress(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / PROGRESS).write_text(text)
    assert read_progress(tmp_path) is None
