"""Groups of training workers: one start serves task after task, and a new group follows after a death."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparring.workflows.distributed import ray_train, resources
from sparring.workflows.distributed.cluster import TrainPool
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.resources import Resources
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.distributed.task_queue import Failure, TaskQueue
from sparring.workflows.distributed.worker_group import train_together
from tests.support.machines import changed


def play(scene: Any) -> Any:
    """Run a scene of a driver and its workers at a queue."""
    return asyncio.run(asyncio.wait_for(scene, timeout=120))


def test_a_task_is_done_when_every_worker_has_done_it() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        future = asyncio.ensure_future(queue.give({"updates": 1}))
        assert await queue.take(0, rank=0, workers=2) == await queue.take(0, rank=1, workers=2) == (1, {"updates": 1})
        again = asyncio.ensure_future(queue.take(1, rank=0, workers=2))
        await queue.done(1, "trained", [], rank=0)
        await asyncio.sleep(0)
        assert not future.done()  # the other may still need its neighbour
        await queue.done(1, "not the first one's", [], rank=1)
        assert await future == ("trained", [], 1, None)
        assert not again.done()
        future = asyncio.ensure_future(queue.give({"updates": 2}))
        assert await again == (2, {"updates": 2})
        await queue.done(1, "of another task", [], rank=0)
        for rank in (0, 1):
            await queue.done(2, "trained more", [], rank=rank)
        assert await future == ("trained more", [], 1, None)

    play(scene())


def test_a_worker_that_starts_again_takes_the_open_task_and_the_start_counts() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        future = asyncio.ensure_future(queue.give({}))
        await queue.take(0, rank=0, workers=1)
        assert await queue.take(0, rank=0, workers=1) == (1, {"restarts": 1})
        await queue.done(1, "at last", [], rank=0)
        assert await future == ("at last", [], 2, None)
        late = asyncio.ensure_future(queue.take(0, rank=0, workers=1))
        await asyncio.sleep(0)
        assert not late.done()  # a task that is done does not start again
        await queue.close()
        assert await late is None

    play(scene())


def test_a_task_that_one_worker_gives_up_is_over_and_the_next_one_is_not() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        future = asyncio.ensure_future(queue.give({}))
        await queue.take(0, rank=0, workers=2)
        await queue.done(1, "of one alone", [], rank=0)
        failure = Failure("there is no such model", False, "a traceback")
        await queue.give_up(1, failure)
        assert (await future)[3] == failure
        future = asyncio.ensure_future(queue.give({}))
        assert await queue.take(1, rank=0, workers=2) == (2, {})
        await queue.give_up(1, failure)  # of a task that is over
        for rank in (0, 1):
            await queue.done(2, "done", [], rank=rank)
        assert (await future)[0::3] == ("done", None)

    play(scene())


@pytest.mark.parametrize(("wait_seconds", "seconds"), [(0, "60"), (600, "600")])
def test_workers_may_take_as_long_to_start_as_the_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait_seconds: int, seconds: str
) -> None:
    """Through the environment variable that Ray Train reads."""
    from ray.train.v2._internal.constants import WORKER_GROUP_START_TIMEOUT_S_ENV_VAR

    class Trainer:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Takes whatever there is to say."""

        def fit(self) -> None:
            assert os.environ[WORKER_GROUP_START_TIMEOUT_S_ENV_VAR] == seconds

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    monkeypatch.setenv(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR, "")
    monkeypatch.delenv(WORKER_GROUP_START_TIMEOUT_S_ENV_VAR)
    monkeypatch.setattr(ray_train, "living_nodes", lambda: {"node"})
    assert ray_train.fit(None, ray_train.GroupSpec(print, 1, 0, 0.0, wait_seconds, least=1), tmp_path) is None


def test_a_task_is_done_when_the_workers_that_are_left_have_done_it() -> None:
    """Ray Train starts fewer workers after a node is lost."""

    async def scene() -> None:
        queue = TaskQueue()
        future = asyncio.ensure_future(queue.give({}))
        for rank in (0, 1):
            await queue.take(0, rank=rank, workers=2)
        assert await queue.take(0, rank=0, workers=1) == (1, {"restarts": 1})
        await queue.done(1, "alone", [], rank=0)
        assert await future == ("alone", [], 2, None)

    play(scene())


def test_workers_without_a_task_end_unless_one_is_promised() -> None:
    async def scene() -> None:
        queue = TaskQueue(idle_seconds=0.05)
        future = asyncio.ensure_future(queue.give({}))
        await queue.take(0, rank=0, workers=1)
        await queue.done(1, "done", [], rank=0)
        await future
        promised = asyncio.ensure_future(queue.take(1, rank=0, workers=1))
        await asyncio.sleep(0.2)  # longer than the workers stay
        assert not promised.done()
        future = asyncio.ensure_future(queue.give({}))
        assert await promised == (2, {})
        await queue.done(2, "done", [], rank=0)
        await future
        await queue.release()
        assert await queue.take(2, rank=0, workers=1) is None
        assert not await queue.claim()

    play(scene())


class Nodes:
    """A cluster that loses nodes while Ray Train works, and what its `fit` then raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fits: tuple[str, Exception | None]) -> None:
        self.living, self.fits = {"head", "one", "other"}, list(fits)
        monkeypatch.setattr(ray_train, "living_nodes", lambda: set(self.living))
        monkeypatch.setattr(ray_train, "look_for_nodes", lambda: None)
        monkeypatch.setattr(ray_train, "NOTICE_SECONDS", 0.1)
        monkeypatch.setattr(ray_train, "_fit", self._fit)

    def _fit(self, *_: Any) -> Exception | None:
        lost, error = self.fits.pop(0)
        self.living -= {lost}
        return error


def lost_worker(reason: str = "The actor died: its node has died.") -> Exception:
    from ray.train import WorkerGroupError

    failures = {0: RuntimeError("Connection closed by peer"), 1: RuntimeError(reason)}
    return WorkerGroupError("lost", failures)


SPEC = ray_train.GroupSpec(print, 2, 0, 0.0, 60, least=1)


def test_a_lost_node_costs_no_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There are none: each loss would be one too many."""
    unnoticed = lost_worker("The actor 39 is unavailable: the actor is temporarily unavailable: RpcError")
    nodes = Nodes(monkeypatch, ("one", lost_worker()), ("other", unnoticed), ("", None))
    assert ray_train.fit(None, SPEC, tmp_path) is None
    assert nodes.fits == []


def test_a_start_that_waits_for_a_lost_node_costs_no_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray.train import ControllerError

    nodes = Nodes(monkeypatch, ("one", ControllerError(RuntimeError("no room"))), ("", None))
    assert ray_train.fit(None, SPEC, tmp_path) is None
    assert nodes.fits == []


def test_a_crash_costs_a_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether its process died or it raised an error, and also if a node is lost with the error."""
    from ray.train import WorkerGroupError

    for lost, error in (("", lost_worker()), ("one", WorkerGroupError("x", {0: ValueError("no text")}))):
        nodes = Nodes(monkeypatch, (lost, error), ("", None))
        assert isinstance(ray_train.fit(None, SPEC, tmp_path), RuntimeError)
        assert len(nodes.fits) == 1


# Through Ray


def process_id(task: dict[str, Any]) -> int:
    """The process that does the task. The last worker first dies or fails where the task says so, or waits for another
    task's worker."""
    from sparring.components.compute.gather import rank, workers

    marker = Path(task["marker"]) if "marker" in task else None
    if marker is not None and not marker.exists() and rank() == workers() - 1:
        marker.touch()
        if task.get("fail"):
            raise ValueError(task["fail"])
        os.kill(os.getpid(), signal.SIGKILL)
    if "meets" in task:
        file, peer_file = map(Path, task["meets"])
        file.touch()
        while not peer_file.exists():
            time.sleep(0.02)
    return os.getpid()


@pytest.fixture
def alone(ray: Machine) -> Iterator[Machine]:
    """One worker, which may die once."""
    yield changed(ray, {"train": TrainPool(workers=1, threads=1), "retries": 1})
    resources.end_warm()


def test_one_start_serves_all_tasks_until_a_worker_dies(alone: Machine, tmp_path: Path) -> None:
    def ask(**task: Any) -> Any:
        return train_together(process_id, task, alone, storage=tmp_path)

    ray_session(alone.cluster)
    before = set(threading.enumerate())
    first = ask()
    # A thread that still waited in Ray's C++ code when this process leaves Ray would write to memory that is freed.
    assert set(threading.enumerate()) == before
    assert ask() == first
    second = ask(marker=str(tmp_path / "died"))  # done by another process
    assert second != first
    assert ask() not in (first, second)  # a new group, which has all retries


@pytest.mark.slow
def test_when_one_of_two_dies_both_start_again(alone: Machine, tmp_path: Path) -> None:
    both = changed(alone, {"train": TrainPool(workers=2, threads=1)})
    task = {"marker": str(tmp_path / "died")}
    first = train_together(process_id, task, both, storage=tmp_path)
    assert (tmp_path / "died").exists()
    assert train_together(process_id, {}, both, storage=tmp_path) != first


def test_a_step_that_needs_the_processors_of_warm_workers_gets_them(alone: Machine, tmp_path: Path) -> None:
    """On a cluster idle workers keep their CPUs from others. A group follows for the next training."""
    joined = changed(alone, {"address": "a running cluster, as far as the group can tell", "wait_seconds": 0})
    first = train_together(process_id, {}, joined, storage=tmp_path)
    assert train_together(process_id, {}, joined, storage=tmp_path) == first
    with resources.reserve(Resources(cpus=joined.cpus), joined.resources), suppress(psutil.NoSuchProcess):
        psutil.Process(first).wait(60)
    assert train_together(process_id, {}, joined, storage=tmp_path) != first


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="one core is enough for one training only")
def test_two_trainings_at_once_have_different_workers(alone: Machine, tmp_path: Path) -> None:
    """The next training uses the workers of one of them."""
    processes: dict[int, Any] = {}

    def ask(number: int) -> None:
        task = {"meets": [str(tmp_path / str(n)) for n in (number, 1 - number)]}
        processes[number] = train_together(process_id, task, alone, storage=tmp_path)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert processes[0] != processes[1]
    assert train_together(process_id, {}, alone, storage=tmp_path) in processes.values()


def test_an_error_comes_in_the_workers_own_words(alone: Machine, tmp_path: Path) -> None:
    never = changed(alone, {"retries": 0})
    with pytest.raises(RuntimeError, match=r"^worker 0: ValueError: no such text\n"):
        train_together(
            process_id, {"marker": str(tmp_path / "failed"), "fail": "no such text"}, never, storage=tmp_path
        )
    assert train_together(process_id, {}, never, storage=tmp_path) != os.getpid()
