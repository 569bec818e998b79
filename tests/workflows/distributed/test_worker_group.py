"""The workers that stay for all trainings of a run: one start, task after task, and a new group after a death."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workflows import worker_group
from workflows.cluster import Cluster, Pool, cores, ray_session
from workflows.worker_group import Desk, train_together


def meet(story: Any) -> Any:
    """Run a story of those who come to a desk."""
    return asyncio.run(asyncio.wait_for(story, timeout=10))


def test_a_task_is_taken_by_each_and_done_when_all_have_done_it() -> None:
    async def story() -> None:
        desk = Desk(workers=2)
        given = asyncio.ensure_future(desk.give({"steps": 1}))
        assert await desk.take(0, rank=0) == await desk.take(0, rank=1) == (1, {"steps": 1})
        again = asyncio.ensure_future(desk.take(1, rank=0))
        await desk.done(1, "trained", [], rank=0)
        await asyncio.sleep(0)
        assert not given.done()  # the other may still need its neighbour
        await desk.done(1, "not the first one's", [], rank=1)
        assert await given == ("trained", [], 1, None)
        assert not again.done()
        given = asyncio.ensure_future(desk.give({"steps": 2}))
        assert await again == (2, {"steps": 2})
        await desk.done(1, "of another task", [], rank=0)
        for rank in (0, 1):
            await desk.done(2, "trained more", [], rank=rank)
        assert await given == ("trained more", [], 1, None)

    meet(story())


def test_who_begins_anew_takes_what_is_open_and_that_is_counted() -> None:
    async def story() -> None:
        desk = Desk(workers=1)
        given = asyncio.ensure_future(desk.give({}))
        await desk.take(0, rank=0)
        assert await desk.take(0, rank=0) == (1, {})
        await desk.done(1, "at last", [], rank=0)
        assert await given == ("at last", [], 2, None)
        late = asyncio.ensure_future(desk.take(0, rank=0))
        await asyncio.sleep(0)
        assert not late.done()  # what is done is not begun again
        await desk.close()
        assert await late is None

    meet(story())


def test_what_one_gives_up_is_over_and_what_comes_next_is_not() -> None:
    async def story() -> None:
        desk = Desk(workers=2)
        given = asyncio.ensure_future(desk.give({}))
        await desk.take(0, rank=0)
        await desk.done(1, "for naught", [], rank=0)
        why = worker_group.Failure("there is no such model", False, "a story")
        await desk.give_up(1, why)
        assert (await given)[3] == why
        given = asyncio.ensure_future(desk.give({}))
        assert await desk.take(1, rank=0) == (2, {})
        await desk.give_up(1, why)  # of a task that is over
        for rank in (0, 1):
            await desk.done(2, "done", [], rank=rank)
        assert (await given)[0::3] == ("done", None)

    meet(story())


@pytest.mark.parametrize(("patience", "seconds"), [(0, "60"), (600, "600")])
def test_workers_may_start_as_late_as_the_profiles_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patience: int, seconds: str
) -> None:
    """By the name that Ray Train knows."""
    from ray.train.v2._internal.constants import WORKER_GROUP_START_TIMEOUT_S_ENV_VAR

    class Trainer:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Takes whatever there is to say."""

        def fit(self) -> None:
            assert os.environ[WORKER_GROUP_START_TIMEOUT_S_ENV_VAR] == seconds

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    monkeypatch.setenv(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR, "")
    monkeypatch.delenv(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR)
    assert worker_group._fit(None, (print, 1, 0, False, patience), tmp_path) is None


# Through Ray


def whose(task: dict[str, Any]) -> int:
    """Which process works; its last one dies or fails first where it is told to, or waits for that of another task."""
    from components.gather import rank, workers

    marker = Path(task["marker"]) if "marker" in task else None
    if marker is not None and not marker.exists() and rank() == workers() - 1:
        marker.touch()
        if task.get("fail"):
            raise ValueError(task["fail"])
        os.kill(os.getpid(), signal.SIGKILL)
    if "meets" in task:
        ours, theirs = map(Path, task["meets"])
        ours.touch()
        while not theirs.exists():
            time.sleep(0.02)
    return os.getpid()


@pytest.fixture
def alone(ray: Cluster) -> Iterator[Cluster]:
    """One worker, which may die once."""
    yield ray.model_copy(update={"train": Pool(workers=1, threads=1), "retries": 1})
    worker_group.dismiss()


def test_one_start_serves_all_until_one_died(alone: Cluster, tmp_path: Path) -> None:
    def ask(**task: Any) -> Any:
        return train_together(whose, task, alone, gpu=False, storage=tmp_path)

    ray_session(alone)
    before = set(threading.enumerate())
    first = ask()
    # A thread that waited in Ray's C++ when this process leaves Ray would write to memory that is no more Ray's.
    assert set(threading.enumerate()) == before
    assert ask() == first
    second = ask(marker=str(tmp_path / "died"))  # begun again by another process
    assert second != first
    assert ask() not in (first, second)  # a new group, which may lose one again


@pytest.mark.slow
def test_of_two_one_dies_and_both_begin_again(alone: Cluster, tmp_path: Path) -> None:
    both = alone.model_copy(update={"train": Pool(workers=2, threads=1)})
    task = {"marker": str(tmp_path / "died")}
    first = train_together(whose, task, both, gpu=False, storage=tmp_path)
    assert (tmp_path / "died").exists()
    assert train_together(whose, {}, both, gpu=False, storage=tmp_path) != first


@pytest.mark.slow
def test_on_a_cluster_they_go_home_after_each(alone: Cluster, tmp_path: Path) -> None:
    joined = alone.model_copy(update={"address": "a running cluster, as far as the group can tell"})
    assert train_together(whose, {}, joined, gpu=False, storage=tmp_path) > 0
    assert worker_group._groups == []


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="there is room for one")
def test_two_trainings_at_once_have_workers_of_their_own(alone: Cluster, tmp_path: Path) -> None:
    """And the next training has those of one of them."""
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        task = {"meets": [str(tmp_path / str(n)) for n in (number, 1 - number)]}
        found[number] = train_together(whose, task, alone, gpu=False, storage=tmp_path)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] != found[1]
    assert train_together(whose, {}, alone, gpu=False, storage=tmp_path) in found.values()


def test_what_fails_says_so_in_its_own_words(alone: Cluster, tmp_path: Path) -> None:
    never = alone.model_copy(update={"retries": 0})
    with pytest.raises(RuntimeError, match=r"^worker 0: ValueError: no such text\n"):
        train_together(
            whose, {"marker": str(tmp_path / "failed"), "fail": "no such text"}, never, gpu=False, storage=tmp_path
        )
    assert train_together(whose, {}, never, gpu=False, storage=tmp_path) != os.getpid()
