"""`chaos`: a run that is killed and resumed is compared; what it must not do is said."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from sparring.workflows.chaos import victims
from sparring.workflows.chaos.killer import Broken, Kill, Killer, Run
from sparring.workflows.command_line import main
from sparring.workflows.commands.chaos import table
from tests.support import tiny
from tests.support.tiny import Said


def slow_run(store: Path, status: int) -> None:
    """Three artifacts, one after another; those that are there are not made again."""
    for number in range(3):
        artifact = store / f"step-{number}"
        artifact.mkdir(parents=True, exist_ok=True)
        if not (artifact / "artifact.json").exists():
            (artifact / "lock").touch()
            time.sleep(0.2)
            (artifact / "artifact.json").touch()
    sys.exit(status)


class Slow(Run):
    """A run of three steps that take a moment, and end with a status."""

    status = 0

    def start(self) -> BaseProcess:
        process = get_context("fork").Process(target=slow_run, args=(self.store, self.status))
        process.start()
        return process


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path, tmp_path, tmp_path)


def test_a_command_is_repeated_until_its_run_is_finished(slow: Slow) -> None:
    kills: list[Kill] = []
    starts = Killer([victims.DRIVER], 4, 1, kills.append, artifacts=3, seconds=0.3).finish(slow, 60.0)
    assert 0 < len(kills) <= 4
    assert starts == len(kills) + 1
    assert slow.finished() == 3
    assert {kill.step for kill in kills} <= {"step", ""}


def test_a_command_that_fails_by_itself_is_broken(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "status", 1)
    with pytest.raises(Broken, match=r"ended with status 1 when nothing was killed: .*/log"):
        Killer([victims.DRIVER], 0, 1, print).finish(slow, 60.0)


def test_a_command_that_does_not_end_is_broken(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    process = get_context("fork").Process(target=time.sleep, args=(600,))
    monkeypatch.setattr(Slow, "start", lambda run: process.start() or process)
    with pytest.raises(Broken, match="has not ended after 0 s"):
        Killer([victims.DRIVER], 0, 1, print).finish(slow, 0.1)
    assert process.exitcode == -signal.SIGKILL


def test_a_table_says_what_was_hit_and_what_was_done_twice() -> None:
    kills = [Kill("driver", "train", 1.0, 7), Kill("driver", "", 0.1, 0), Kill("Java", "lucene_index", 2.0, 0)]
    lines = [re.split(r" {2,}", line.strip()) for line in table(kills).strip().splitlines()]
    assert lines == [
        ["hit", "kills", "updates done twice", "in"],
        ["driver", "2", "7", "train 1, between steps 1"],
        ["Java", "1", "0", "lucene_index 1"],
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kills", "0"], "--kills: got 0; accepted: 1 or more"),
        (["--keep", "{full}"], "--keep {full}: is not an empty folder; accepted: an empty or a new one"),
        (
            ["--keep", "{full}/file/x"],
            "{full}/file/x: cannot be written, as {full}/file is a file; accepted: another FOLDER",
        ),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], says: str, tmp_path: Path, said: Said) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    words = [word.format(full=tmp_path / "full") for word in words]
    assert main(["--store", str(tmp_path / "store"), "chaos", *words]) == 2
    assert said()[1] == f"error: {says.format(full=tmp_path / 'full')}\n"
    assert os.listdir(tmp_path) == ["full"]


def test_a_store_on_s3_is_refused(said: Said) -> None:
    assert main(["--store", "s3://bucket/prefix", "chaos"]) == 2
    assert "--store s3://bucket/prefix: chaos tries stores in directories" in said()[1]


@pytest.mark.kill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("profile", "kills"), [({}, 12), ({"mode": "ray", "object_store_mb": 100}, 6)])
def test_nothing_is_lost(profile: dict[str, object], kills: int, tmp_path: Path, said: Said) -> None:
    """The command as a user has it; the folder goes when all is well."""
    cluster = tiny.write(tmp_path / "cluster.yaml", {**tiny.INLINE, "max_tokens_per_pass": 4096, **profile})
    words = ["chaos", "--kills", str(kills), "--cluster", str(cluster)]
    assert main(["--store", str(tmp_path / "store"), *words]) == 0
    out = said()[0]
    assert len(re.findall(r"^ +\d+/\d+  [\w ]+ killed (in \w+|between steps), ", out, re.M)) == kills
    assert out.endswith("nothing lost, nothing wrong\n")
    assert os.listdir(tmp_path) == ["cluster.yaml"]


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_what_is_wrong_is_named_and_kept(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sparring.workflows.commands.chaos.first_difference", lambda store, second: "train-1/model: differs"
    )
    cluster = tiny.write(tmp_path / "cluster.yaml", tiny.INLINE)
    with pytest.raises(SystemExit, match="1"):
        main(["--store", str(tmp_path / "store"), "chaos", "--kills", "1", "--cluster", str(cluster)])
    out = said()[0]
    assert "WRONG: " in out
    assert "/run-1/store/train-1/model: differs\neverything is kept in " in out
    assert list(tmp_path.glob("chaos-*/run-1/store/*"))
