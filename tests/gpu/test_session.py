"""The session of a GPU: what is done stays done, and what fails or takes too long is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.gpu import session
from tests.gpu.session import Job


def python(name: str, code: str, seconds: float = 60.0) -> Job:
    """A job of one line of Python."""
    return Job(name, [sys.executable, "-c", code], seconds)


def status(folder: Path, name: str) -> str:
    return str(json.loads((folder / f"{name}.json").read_text())["status"])


def test_jobs_that_are_done_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "machine", lambda root: "a machine")
    jobs = [python("quick", "print('well')"), python("wrong", "raise SystemExit(1)")]
    slow = python("slow", "import time; time.sleep(60)", 0.5)
    assert not session.session([*jobs, slow], tmp_path, 60.0)
    assert [status(tmp_path, name) for name in ("quick", "wrong", "slow")] == ["done", "failed", "interrupted"]
    assert (tmp_path / "quick.log").read_text() == "well\n"
    capsys.readouterr()
    assert not session.session(jobs, tmp_path, 60.0)
    assert capsys.readouterr().out.splitlines()[0] == "quick: done before"
    assert session.session([slow], tmp_path, 0.0)
    assert "the time is over" in capsys.readouterr().out


def test_the_rehearsal_has_the_same_jobs_in_the_same_order(tmp_path: Path) -> None:
    real, rehearsed = (session.jobs(tmp_path, rehearsal=rehearsal) for rehearsal in (False, True))
    assert [job.name for job in real] == [job.name for job in rehearsed]
    assert real[0].name == "tests"
    assert sum(job.seconds for job in real[:-1]) <= 720
