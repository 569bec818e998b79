"""The map over shards: every file whole, each done once, what was done kept, and errors that say what they are."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from components import clock
from components.config import UserError
from tests import workers
from tests.tiny import ROOT
from workflows import shards
from workflows.cluster import Cluster, Pool
from workflows.dag import step
from workflows.shards import Shard, map_shards
from workflows.store import StepFailed, Store, execute

INLINE = Cluster(mode="inline")


def pieces(count: int, **special: dict[str, Any]) -> list[Shard]:
    """Shards of 10 units; `s2={"fail": True}` makes the second one special."""
    return [Shard(f"part-{n}", 10, {"number": n, **special.get(f"s{n}", {})}) for n in range(count)]


def run(
    out: Path, wanted: list[Shard], cluster: Cluster = INLINE, worker: type = workers.Noter, **constructor: Any
) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return map_shards(
        worker, wanted, out=out, cluster=cluster, pool=Pool(workers=2), unit="texts", log=str(out.parent / "log"),
        **constructor,
    )  # fmt: skip


def log(out: Path) -> list[str]:
    """The numbers of the shards that were done."""
    lines = (out.parent / "log").read_text().splitlines()
    return [line.split()[0] for line in lines if line != "closed"]


def progress(out: Path) -> dict[str, Any]:
    found = dict(json.loads((out / "progress.json").read_text()))
    assert found.pop("seconds") >= 0
    return found


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


def test_a_shard_that_is_there_is_not_done_again(out: Path) -> None:
    out.mkdir()
    (out / "part-1").write_text("mine")
    run(out, pieces(3))
    assert log(out) == ["0", "2"]
    assert (out / "part-1").read_text() == "mine"
    assert progress(out)["first"] == 10
    run(out, pieces(3))
    assert log(out) == ["0", "2"]


def test_no_worker_is_made_for_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "Filler", None)
    assert run(out, []) == {}
    (out / "part-0").write_text("mine")
    assert run(out, pieces(1)) == {}
    assert progress(out) == {"done": 10, "first": 10, "total": 10, "unit": "texts", "note": ""}


def test_what_killed_writers_left_is_swept(out: Path) -> None:
    out.mkdir()
    (out / ".part-0.0123abcd").write_text("half")
    (out / ".part-1.0123abcd").mkdir()
    (out / ".part-1.0123abcd" / "file").write_text("half")
    (out / ".hidden").write_text("mine")
    run(out, pieces(1))
    assert {path.name for path in out.iterdir()} == {"part-0", ".hidden", "progress.json"}


def test_an_error_surfaces_and_what_was_done_stays(out: Path) -> None:
    with pytest.raises(ValueError, match="shard 2:\nthe text cannot be read"):
        run(out, pieces(4, s2={"fail": True}))
    assert {path.name for path in out.iterdir()} == {"part-0", "part-1", "progress.json"}
    assert (out.parent / "log").read_text().endswith("closed\n")
    run(out, pieces(4, s2={"fail": True}))
    assert log(out) == ["0", "1", "2", "3"]


def test_a_shard_may_be_a_directory(out: Path) -> None:
    out.mkdir()
    (out / "part-0").mkdir()
    run(out, pieces(2), worker=workers.Folder)
    assert list((out / "part-0").iterdir()) == []  # whoever was first wrote the same thing
    assert (out / "part-1" / "file").exists()


def test_a_process_keeps_its_worker_for_a_step_and_not_for_ever(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made for the first shard, kept for the next, closed by another step's or when nothing is asked of it."""
    monkeypatch.setattr(shards, "IDLE_SECONDS", 600.0)
    out.mkdir()
    closed = out.parent / "log"
    made_from = {"worker": workers.Noter, "out": out, "threads": 1, "constructor": {"log": str(closed)}}
    resident = shards._Resident()
    first, second, third = pieces(3)
    resident.fill(first, made_from, "a step")
    filler = resident._filler
    resident.fill(second, made_from, "a step")
    assert resident._filler is filler
    assert "closed" not in closed.read_text()
    monkeypatch.setattr(shards, "IDLE_SECONDS", 0.05)
    resident.fill(third, made_from, "another step")
    assert closed.read_text().splitlines()[2] == "closed"
    while resident._filler is not None:
        time.sleep(0.01)
    assert closed.read_text().count("closed") == 2


def test_what_workers_count_is_added_up_over_the_shards(out: Path) -> None:
    assert run(out, pieces(3), worker=workers.Counting) == {"texts": 30.0}
    assert run(out, pieces(3), worker=workers.Counting) == {}


def test_a_step_knows_what_its_workers_were_at(out: Path) -> None:
    clock.drain()
    run(out, pieces(2, s0={"seconds": 0.05}))
    found = clock.spent(clock.drain())
    assert found["compute"] >= 0.05
    assert found["waiting"] == 0


@pytest.mark.parametrize(("count", "workers", "most"), [(52, 2, 8), (7, 3, 8), (1, 4, 8), (1000, 16, 8), (52, 2, 1)])
def test_runs_are_dealt_long_ones_first(count: int, workers: int, most: int) -> None:
    """Everything once and in order; no run is more than half of what a worker's part of the rest would be, unless it
    is one; the last ones are single, so that nobody waits long for another at the end."""
    runs = shards.dealt(list(range(count)), workers, most)
    sizes = [len(run) for run in runs]
    assert [item for run in runs for item in run] == list(range(count))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == min(most, -(-count // (2 * workers)))
    assert all(size == 1 or 2 * workers * (size - 1) < sum(sizes[i:]) for i, size in enumerate(sizes))
    assert sizes[-workers:] == [1] * min(workers, count)


# Through Ray


def test_through_ray_counts_and_times_come_back(ray: Cluster, tmp_path: Path) -> None:
    clock.drain()
    assert run(tmp_path / "out", pieces(2, s0={"seconds": 0.3}), ray, workers.Counting) == {"texts": 20.0}
    found = clock.spent(clock.drain())
    assert 0.3 <= found["compute"] < 5
    assert found["start"] > 0


def test_through_ray_processes_stay_for_the_next_step(ray: Cluster, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        run(tmp_path / name / "out", pieces(4, **{f"s{n}": {"seconds": 0.5} for n in range(4)}), ray)
    first, second = ((tmp_path / name / "log").read_text().splitlines() for name in ("one", "other"))
    processes = [{line.split()[1] for line in lines if line != "closed"} for lines in (first, second)]
    assert processes[0] & processes[1]


def test_on_a_gpu_an_actor_does_the_same(out: Path) -> None:
    out.mkdir()
    made_from = {"worker": workers.Noter, "out": out, "threads": 1, "constructor": {"log": str(out.parent / "log")}}
    batch = {"file": ["part-7"], "size": [10], "task": ['{"number": 7}']}
    (done,) = shards._OnGPU(made_from=made_from, run="a step")(batch)
    assert (done["size"], done["mistake"], done["failure"]) == ([10], [""], [""])
    assert json.loads((out / "part-7").read_text())["number"] == 7


def mapping(out: Path, cluster: Any, *, special: dict[str, Any], worker: str) -> None:
    """The map as a step."""
    run(out, pieces(5, **special), cluster, worker=getattr(workers, worker))


def test_through_ray_every_shard_once_though_a_worker_was_killed(ray: Cluster, out: Path) -> None:
    """The shard, the second of the three that the process was handed, is begun again in another, and the first is not;
    the workers use the code that is here."""
    run(out, pieces(12, s1={"die": True}), ray, words="hello")
    assert (out.parent / "died").exists()
    assert sorted(log(out), key=int) == [str(n) for n in range(12)]
    assert {path.name for path in out.glob("part-*")} == {f"part-{n}" for n in range(12)}
    assert json.loads((out / "part-1").read_text()) == {"number": 1, "die": True, "threads": 1, "words": "hello"}
    assert progress(out)["done"] == 120
    lines = [line for line in (out.parent / "log").read_text().splitlines() if line != "closed"]
    assert {line.split()[2] for line in lines} == {str(ROOT)}


def test_through_ray_an_error_is_one_line_that_says_it(ray: Cluster, tmp_path: Path) -> None:
    node = step("mapping", mapping, special={"s2": {"fail": True}}, worker="Noter")
    store = Store(tmp_path / "store")
    with pytest.raises(StepFailed) as caught:
        execute(node, store, ray, on_wait=print)
    assert str(caught.value) == (
        f"step 'mapping' failed: the text cannot be read (the whole story: {store.path(node) / 'failure.txt'})"
    )
    story = (store.path(node) / "failure.txt").read_text()
    assert re.search(r"In process \d+ on \S+:\nTraceback", story)
    assert "ValueError: shard 2:" in story
    assert not (store.path(node) / "part-2").exists()
    assert execute(node, store, ray, on_wait=print)
    assert set(log(store.path(node))) == {"0", "1", "2", "3", "4"}  # what was under way when it failed may come twice


def test_through_ray_nothing_is_begun_after_a_failure(ray: Cluster, out: Path) -> None:
    """Neither what the process was handed beside the shard that failed, nor what the other was."""
    with pytest.raises(RuntimeError, match="the text cannot be read") as caught:
        run(out, pieces(24, s0={"fail": True}, **{f"s{n}": {"seconds": 0.5} for n in range(6, 24)}), ray)
    there = set(out.glob("part-*"))
    time.sleep(2)
    assert not there & {out / f"part-{n}" for n in range(6)}
    assert len(set(out.glob("part-*")) - there) <= 1
    del caught  # until here it kept all frames, and so what they hold: nothing ended for being forgotten


def test_through_ray_shards_are_told_of_one_by_one(ray: Cluster, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when all that a process was handed is done: here the second waits until the first was told of."""
    told = out.parent / "told"
    monkeypatch.setattr(shards.Progress, "add", lambda self, count: told.touch() if count == 1 else None)
    first, *others = pieces(6, s1={"until": str(told)})
    run(out, [first._replace(size=1), *others], ray)
    assert sorted(log(out)) == ["0", "1", "2", "3", "4", "5"]


def test_through_ray_a_users_mistake_passes_through(ray: Cluster, out: Path) -> None:
    with pytest.raises(UserError, match=r"^shard 2 is not as it should be$"):
        run(out, pieces(3, s2={"fail": "user"}), ray)


@pytest.mark.slow
def test_through_ray_a_worker_that_cannot_be_made_says_why(ray: Cluster, out: Path) -> None:
    """Once: another would meet the same."""
    with pytest.raises(RuntimeError, match=r"^FileNotFoundError: there is no such model"):
        run(out, pieces(1), ray, worker=workers.Refusing)
    assert (out.parent / "log").read_text() == "began\n"


@pytest.mark.slow
def test_through_ray_a_worker_that_cannot_live_fails_the_step(ray: Cluster, tmp_path: Path) -> None:
    """Ray would begin it again for ever."""
    node = step("mapping", mapping, special={}, worker="Stillborn")
    with pytest.raises(StepFailed, match=r"^step 'mapping' failed: a worker's process died again and again"):
        execute(node, Store(tmp_path / "store"), ray, on_wait=print)
    assert 1 <= len((tmp_path / "store" / "log").read_text().splitlines()) <= 20
