"""The map over shards: every file is whole and made once, finished files stay, and errors are clear."""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparring.components import timing
from sparring.components.config import UserError
from sparring.workflows.distributed import ray_map, shard_worker, shards
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.shards import Shard, map_shards, run_in_worker, shard_size
from sparring.workflows.running.executor import execute
from sparring.workflows.store import attempts
from sparring.workflows.store.dag import StepFailed, step
from sparring.workflows.store.progress import Progress
from sparring.workflows.store.store import Store
from tests.support import workers
from tests.support.tiny import ROOT

INLINE = resolve_machine(Cluster(mode="inline"))


def pieces(count: int, **special: dict[str, Any]) -> list[Shard]:
    """Shards of 10 units; `s2={"fail": True}` makes the second one special."""
    return [Shard(f"part-{n}", 10, {"number": n, **special.get(f"s{n}", {})}) for n in range(count)]


def run(
    out: Path, wanted: list[Shard], machine: Machine = INLINE, worker: type = workers.Noter, **constructor: Any
) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return map_shards(
        worker,
        wanted,
        out=out,
        machine=machine,
        pool=Pool(workers=2),
        unit="texts",
        log=str(out.parent / "log"),
        **constructor,
    )


def log(out: Path) -> list[str]:
    """The numbers of the shards that were done."""
    lines = (out.parent / "log").read_text().splitlines()
    return [line.split()[0] for line in lines if line != "closed"]


def progress(out: Path) -> dict[str, Any]:
    state = dict(json.loads((out / "progress.json").read_text()))
    assert state.pop("seconds") >= 0
    return state


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_every_shard_has_its_file(out: Path) -> None:
    run(out, pieces(3), words="hello")
    assert log(out) == ["0", "1", "2"]
    assert json.loads((out / "part-1").read_text()) == {"number": 1, "threads": 1, "words": "hello"}
    assert {path.name for path in out.iterdir()} == {"part-0", "part-1", "part-2", "progress.json"}
    assert progress(out) == {"done": 30, "first": 0, "total": 30, "unit": "texts", "note": ""}
    assert (out.parent / "log").read_text().endswith("closed\n")


@pytest.mark.parametrize(
    ("rows", "most", "size"),
    [(0, 2_000, 256), (1_992, 2_000, 256), (20_000, 2_000, 625), (64_001, 2_000, 2_000), (5_000, 50, 50)],
)
def test_few_rows_make_enough_shards_for_many_workers(rows: int, most: int, size: int) -> None:
    assert shard_size(rows, most) == size


def test_a_finished_shard_is_not_done_again(out: Path) -> None:
    out.mkdir()
    (out / "part-1").write_text("mine")
    run(out, pieces(3))
    assert log(out) == ["0", "2"]
    assert (out / "part-1").read_text() == "mine"
    assert progress(out)["first"] == 10
    run(out, pieces(3))
    assert log(out) == ["0", "2"]


def test_no_worker_is_built_when_all_shards_are_done(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "Filler", None)
    assert run(out, []) == {}
    (out / "part-0").write_text("mine")
    assert run(out, pieces(1)) == {}
    assert progress(out) == {"done": 10, "first": 10, "total": 10, "unit": "texts", "note": ""}


def test_half_written_files_of_killed_writers_are_removed(out: Path) -> None:
    out.mkdir()
    (out / ".part-0.0123abcd").write_text("half")
    (out / ".part-1.0123abcd").mkdir()
    (out / ".part-1.0123abcd" / "file").write_text("half")
    (out / ".hidden").write_text("mine")
    run(out, pieces(1))
    assert {path.name for path in out.iterdir()} == {"part-0", ".hidden", "progress.json"}


def test_after_an_error_the_finished_shards_stay(out: Path) -> None:
    with pytest.raises(ValueError, match="shard 2:\nthe text cannot be read"):
        run(out, pieces(4, s2={"fail": True}))
    assert {path.name for path in out.iterdir()} == {"part-0", "part-1", "progress.json", attempts.ATTEMPTS}
    assert (out.parent / "log").read_text().endswith("closed\n")
    run(out, pieces(4, s2={"fail": True}))
    assert log(out) == ["0", "1", "2", "3"]


def test_a_shard_may_be_a_directory(out: Path) -> None:
    out.mkdir()
    (out / "part-0").mkdir()
    run(out, pieces(2), worker=workers.Folder)
    assert list((out / "part-0").iterdir()) == []  # it was there already, so it is left alone
    assert (out / "part-1" / "file").exists()


def test_a_process_keeps_its_worker_until_its_map_is_over(out: Path) -> None:
    out.mkdir()
    closed = out.parent / "log"
    arguments = {"worker": workers.Noter, "out": out, "threads": 1, "constructor": {"log": str(closed)}}
    process = shard_worker.MapProcess(None)
    first, second, third = pieces(3)
    process.begin(1, arguments)
    process.fill(1, first.file, first.task)
    filler = process._filler
    process.fill(1, second.file, second.task)
    assert process._filler is filler
    assert "closed" not in closed.read_text()
    process.finish(1)
    assert closed.read_text().splitlines()[-1] == "closed"
    assert process._filler is None
    process.begin(2, arguments)
    process.begin(1, arguments)  # which threads may do after they have begun the next map
    process.finish(1)
    assert process.fill(2, third.file, third.task).failure == ""
    process.finish(2)
    assert closed.read_text().count("closed") == 2
    process.finish(3)
    process.begin(3, arguments)  # its answer came too late: other processes have finished the map
    assert process._filler is None


def test_a_process_fills_no_further_shard_after_a_failure(out: Path) -> None:
    out.mkdir()
    arguments = {"worker": workers.Noter, "out": out, "threads": 1, "constructor": {"log": str(out.parent / "log")}}
    process = shard_worker.MapProcess(None)
    first, second = pieces(2, s0={"fail": True})
    process.begin(1, arguments)
    assert "the text cannot be read" in process.fill(1, first.file, first.task).failure
    assert process.fill(1, second.file, second.task).skipped
    assert not (out / second.file).exists()
    process.begin(2, arguments)
    assert process.fill(2, first.file, first.task).failure == ""


def test_a_process_on_a_gpu_reads_the_next_shard_while_it_computes(out: Path) -> None:
    """In the process's other threads. The first shard waits until the second one has been read, and the second one
    does not compute before the first one is done."""
    out.mkdir()
    process = shard_worker.MapProcess(None)
    constructor = {"log": str(out.parent / "log")}
    process.begin(1, {"worker": workers.Preparing, "out": out, "threads": 1, "constructor": constructor})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(process.fill, 1, "part-0", {"number": 0, "until": str(out.parent / "read-1")})
        while not (out.parent / "began-0").exists():
            time.sleep(0.01)
        second = threads.submit(process.fill, 1, "part-1", {"number": 1})
    assert first.result().failure == second.result().failure == ""
    assert log(out) == ["0", "1"]
    assert json.loads((out / "part-1").read_text())["text"] == "text 1"


def test_progress_moves_within_a_shard(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Progress, "_write", lambda self: seen.append(self._done))
    monkeypatch.setattr(Progress, "_written", -1e9, raising=False)
    run(out, pieces(2), worker=workers.Advancing)
    assert [done for done in (5, 15) if done in seen] == [5, 15]
    assert seen[-1] == 20


def test_counts_of_workers_are_added_up(out: Path) -> None:
    assert run(out, pieces(3), worker=workers.Counting) == {"texts": 30.0}
    assert run(out, pieces(3), worker=workers.Counting) == {}


def test_a_step_knows_how_its_workers_spent_their_time(out: Path) -> None:
    timing.drain()
    run(out, pieces(2, s0={"seconds": 0.05}))
    spent = timing.seconds_by_kind(timing.drain())
    assert spent["compute"] >= 0.05
    assert spent["waiting"] == 0


def test_a_resumed_step_records_the_time_and_the_counts_of_all_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ends in its third shard of five, of 10 texts each. The second resumes as if an hour later."""
    node = step("mapping", mapping, special={"s0": {"seconds": 0.2}, "s2": {"fail": True}}, worker="Counting")
    store = Store(tmp_path / "store")
    with pytest.raises(StepFailed):
        execute(node, store, INLINE, on_wait=print)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert execute(node, store, INLINE, on_wait=print)
    record = store.record(node)
    assert record["summary"] == {"texts": 50.0}
    assert record["time"]["compute"] >= 0.2
    assert sum(record["nodes"].values()) >= 0.2
    assert 0.2 <= record["seconds"] < 3600
    assert now() < record["started"] < record["started"] + record["seconds"] <= now() + 3600
    assert not (store.path(node) / attempts.ATTEMPTS).exists()


def test_of_an_attempt_that_kept_nothing_no_time_is_recorded(tmp_path: Path) -> None:
    node = step("mapping", mapping, special={"s0": {"fail": True}}, worker="Counting")
    store = Store(tmp_path / "store")
    with pytest.raises(StepFailed):
        execute(node, store, INLINE, on_wait=print)
    assert not (store.path(node) / attempts.ATTEMPTS).exists()


@pytest.mark.kill
def test_a_map_that_is_killed_has_kept_the_time_of_its_shards(out: Path) -> None:
    """By SIGKILL, in its third shard."""
    script = (
        "import sys; from pathlib import Path; from tests.workflows.distributed import test_shards as t\n"
        "t.attempts.KEEP_SECONDS = -1.0\n"
        "t.run(Path(sys.argv[1]), t.pieces(4, s2={'die': True}), worker=t.workers.Counting)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(out)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert run(out, pieces(4, s2={"die": True}), worker=workers.Counting) == {"texts": 40.0}


# Through Ray


def test_through_ray_counts_and_times_come_back(ray: Machine, tmp_path: Path) -> None:
    timing.drain()
    assert run(tmp_path / "out", pieces(2, s0={"seconds": 0.3}), ray, workers.Counting) == {"texts": 20.0}
    spent = timing.seconds_by_kind(timing.drain())
    assert spent["compute"] >= 0.3
    assert spent["start"] > 0


def processes(out: Path) -> set[str]:
    """The processes that did shards."""
    lines = (out.parent / "log").read_text().splitlines()
    return {line.split()[1] for line in lines if line != "closed"}


def test_through_ray_processes_stay_for_the_next_step(ray: Machine, tmp_path: Path) -> None:
    """With another worker, and another number of threads too."""
    slow = {f"s{n}": {"seconds": 0.5} for n in range(4)}
    for name, worker in (("one", workers.Noter), ("other", workers.Counting)):
        (tmp_path / name).mkdir()
        run(tmp_path / name / "out", pieces(4, **slow), ray, worker)
    first, second = (processes(tmp_path / name / "out") for name in ("one", "other"))
    assert len(second) == 2
    assert second <= first | second
    assert len(first | second) == 2


def test_through_ray_progress_moves_within_a_shard(ray: Machine, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard ends when the driver has seen the half of it."""
    seen = out.parent / "seen"
    monkeypatch.setattr(ray_map, "LOOK_SECONDS", 0.05)
    done = shards.Progress.set_done
    monkeypatch.setattr(
        shards.Progress,
        "set_done",
        lambda self, count, *more: (seen.touch() if count == 5 else None, done(self, count, *more)),
    )
    run(out, pieces(1, s0={"until": str(seen)}), ray, workers.Advancing)
    assert progress(out)["done"] == 10
    assert not list(out.glob(".*"))


def mapping(out: Path, machine: Any, *, special: dict[str, Any], worker: str) -> dict[str, float]:
    """The map as a step."""
    return run(out, pieces(5, **special), machine, worker=getattr(workers, worker))


def test_through_ray_every_shard_is_done_once_though_a_worker_is_killed(ray: Machine, out: Path) -> None:
    """The shards of the killed process start again in another process; the workers use this checkout's code."""
    run(out, pieces(12, s1={"die": True}), ray, words="hello")
    assert (out.parent / "died").exists()
    assert sorted(log(out), key=int) == [str(n) for n in range(12)]
    assert {path.name for path in out.glob("part-*")} == {f"part-{n}" for n in range(12)}
    assert json.loads((out / "part-1").read_text()) == {"number": 1, "die": True, "threads": 1, "words": "hello"}
    assert progress(out)["done"] == 120
    lines = [line for line in (out.parent / "log").read_text().splitlines() if line != "closed"]
    assert {line.split()[2] for line in lines} == {str(ROOT)}


def test_through_ray_an_error_is_one_clear_line(ray: Machine, tmp_path: Path) -> None:
    node = step("mapping", mapping, special={"s2": {"fail": True}}, worker="Noter")
    store = Store(tmp_path / "store")
    with pytest.raises(StepFailed) as caught:
        execute(node, store, ray, on_wait=print)
    assert str(caught.value) == (
        f"step 'mapping' failed: the text cannot be read (traceback: {store.path(node) / 'failure.txt'})"
    )
    story = (store.path(node) / "failure.txt").read_text()
    assert re.search(r"In process \d+ on \S+:\nTraceback", story)
    assert "ValueError: shard 2:" in story
    assert not (store.path(node) / "part-2").exists()
    assert execute(node, store, ray, on_wait=print)
    assert set(log(store.path(node))) == {"0", "1", "2", "3", "4"}  # what ran beside the failure may have run twice


def test_through_ray_no_shard_starts_after_a_failure(ray: Machine, out: Path) -> None:
    """Neither the shard that the failed process has got ahead, nor those that wait."""
    slow = {f"s{n}": {"seconds": 0.5} for n in range(1, 24)}
    with pytest.raises(RuntimeError, match="the text cannot be read") as caught:
        run(out, pieces(24, s0={"fail": True}, **slow), ray)
    parts: set[Path] = set()
    while (now := set(out.glob("part-*"))) != parts:  # until nothing comes any more
        parts = now
        time.sleep(2)
    assert out / "part-0" not in parts
    assert len(parts) <= 2
    del caught  # it has kept all frames until here, so that the garbage collector ended nothing


def test_through_ray_each_shard_is_reported_at_once(ray: Machine, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when another shard is done: the first one ends last but one, and the second one waits for the report of
    the third."""
    reported = out.parent / "reported"
    monkeypatch.setattr(attempts, "KEEP_SECONDS", -1.0)
    monkeypatch.setattr(attempts, "keep", lambda *_, **__: reported.touch())
    run(out, pieces(6, s0={"until": str(out / "part-5")}, s1={"until": str(out / "part-2"), "seconds": 0.0}), ray)
    assert reported.exists()
    assert sorted(log(out)) == ["0", "1", "2", "3", "4", "5"]


def test_through_ray_a_mistake_of_the_users_stays_one(ray: Machine, out: Path) -> None:
    with pytest.raises(UserError, match=r"^shard 2 is not as it should be$"):
        run(out, pieces(3, s2={"fail": "user"}), ray)


@pytest.mark.slow
def test_through_ray_a_worker_that_cannot_be_built_says_why(ray: Machine, out: Path) -> None:
    """And is not retried: another worker would meet the same error."""
    with pytest.raises(RuntimeError, match=r"^FileNotFoundError: there is no such model"):
        run(out, pieces(1), ray, worker=workers.Refusing)
    assert (out.parent / "log").read_text() == "began\n"


@pytest.mark.slow
def test_through_ray_a_worker_that_always_dies_fails_the_step(ray: Machine, tmp_path: Path) -> None:
    """Without a bound Ray would retry it for ever."""
    node = step("mapping", mapping, special={}, worker="Stillborn")
    with pytest.raises(StepFailed, match=r"^step 'mapping' failed: a worker's process died again and again"):
        execute(node, Store(tmp_path / "store"), ray, on_wait=print)
    assert 1 <= len((tmp_path / "store" / "log").read_text().splitlines()) <= 20


def whole(out: Path, machine: None, *, upstream: Path, mistake: bool = False) -> dict[str, Any]:
    """A step function without workers of its own."""
    if mistake:
        raise UserError("the wrong key", key="data.path", code="missing-file")
    (out / "table").write_text((upstream / "table").read_text() * 2)
    return {"folder": str(Path.cwd()), "machine": machine}


def test_a_step_runs_whole_in_a_worker(tmp_path: Path) -> None:
    """Its summary comes back, and nothing but its own files stays."""
    for name in ("upstream", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "upstream" / "table").write_text("row ")
    summary = run_in_worker(whole, tmp_path / "out", INLINE, {"upstream": tmp_path / "upstream"})
    assert summary == {"folder": str(Path.cwd()), "machine": None}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"table"}
    assert (tmp_path / "out" / "table").read_text() == "row row "


def test_a_mistake_keeps_its_key_and_code_on_its_way_from_a_process(tmp_path: Path) -> None:
    process = shard_worker.MapProcess(None)
    step_function = partial(whole, upstream=tmp_path, mistake=True)
    constructor = {"step": step_function, "out": str(tmp_path), "folder": str(tmp_path)}
    process.begin(1, {"worker": shards._Whole, "out": tmp_path, "threads": 1, "constructor": constructor})
    report = copy.deepcopy(process.fill(1, shards.SUMMARY, {}))
    assert (str(report.mistake), report.mistake.key, report.mistake.code) == (
        "the wrong key",
        "data.path",
        "missing-file",
    )
