"""The Ray Train workers of a run: started for its first training, and there for the next ones.

A `fit` of Ray Train takes seconds to start its processes, and those seconds again to import torch. So one `fit` serves
all trainings of a driver: its workers take one after another from a desk.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from components import clock
from components.config import UserError
from workflows import mirror
from workflows.cluster import Cluster, node_name, ray_session, tell_ray
from workflows.memory import ran_out
from workflows.room import Room, held

Work = Callable[[dict[str, Any]], Any]

# Ray Train calls its function in a thread. The C library gives a thread memory of its own, in heaps of 64 MB that it
# unmaps as soon as one is empty: with tensors of about that size half the time of a step went into the kernel.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
START_SECONDS = 60
"""How long the workers of a training may take to start, at least."""


def train_together(work: Work, task: dict[str, Any], cluster: Cluster, *, gpu: bool, storage: Path) -> Any:
    """What `work(task)` returned to the first of the profile's workers, each of whom called it.

    After a worker died all begin the task again, as often as the profile's `retries` says; what fails then, or would
    fail every time, is raised in the worker's own words. `storage` is a directory that all nodes see, in which Ray
    Train keeps what it needs to.

    Workers that hold what others wait for, a GPU or a place on a cluster, go home after each task.
    """
    ray_session(cluster)
    workers = cluster.train.workers or 1
    needs = Room(gpus=workers) if gpu else Room(cpus=workers * cluster.train_threads())
    with held(needs, cluster.room()):
        patience = cluster.patience if cluster.address else 0
        group = _taken((work, workers, cluster.retries, gpu, patience), storage)
        try:
            return group.run(task)
        finally:
            group.busy = False
            if gpu or cluster.address:
                dismiss(group)


def dismiss(*groups: _Group) -> None:
    """Send groups of workers home, all there are if none is named, and wait until they are gone."""
    for group in groups or tuple(_groups):
        group.end()
        if group in _groups:
            _groups.remove(group)


def _taken(kind: tuple[Any, ...], storage: Path) -> _Group:
    """A group of a kind that nobody else has: one that waits for a task, or a new one in the place of those."""
    with _taking:
        idle = [group for group in _groups if not group.busy]
        group = next((group for group in idle if group.kind == kind and group.sound()), None)
        if group is None:
            if idle:
                dismiss(*idle)
            group = _Group(kind, storage)
            _groups.append(group)
        group.busy = True
        return group


_groups: list[_Group] = []
_taking = threading.Lock()


class Desk:
    """Where the driver leaves a task, each worker finds it, and the first worker leaves what came of it."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._changed = asyncio.Condition()
        self._number, self._open, self._closed = 0, False, False
        self._task: dict[str, Any] = {}
        self._result: Any = None
        self._time: list[clock.Interval] = []
        self._begun = 0
        self._failure: Failure | None = None
        self._done: set[int] = set()

    async def give(self, task: dict[str, Any]) -> tuple[Any, list[clock.Interval], int, Failure | None]:
        """Leave a task; returns when all have done it, or one has given it up: its result, what all were at, how often
        it was begun, and why it was given up."""
        async with self._changed:
            self._number, self._task, self._open, self._begun = self._number + 1, task, True, 0
            self._done.clear()
            self._time, self._failure = [], None
            self._changed.notify_all()
            await self._changed.wait_for(lambda: not self._open)
            return self._result, self._time, self._begun, self._failure

    async def take(self, last: int, *, rank: int) -> tuple[int, dict[str, Any]] | None:
        """The number and the task after the last one, when there is one; None when there will be none."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or (self._open and self._number > last))
            self._begun += rank == 0
            return None if self._closed else (self._number, self._task)

    async def done(self, number: int, result: Any, time: list[clock.Interval], *, rank: int) -> None:
        """A worker has done the task of that number."""
        async with self._changed:
            if number != self._number:
                return  # one that the driver gave up on
            self._done.add(rank)
            self._time += time
            if rank == 0:
                self._result = result
            self._open = len(self._done) < self._workers
            self._changed.notify_all()

    async def give_up(self, number: int, failure: Failure) -> None:
        """A worker met in the task of that number what it would meet every time."""
        async with self._changed:
            if number == self._number and self._open:
                self._failure, self._open = failure, False
                self._changed.notify_all()

    async def close(self) -> None:
        """There will be no more."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()


class Failure(NamedTuple):
    """Why a worker gave a task up."""

    said: str
    mistake: bool
    """The user's."""
    story: str


def hopeless(error: Exception) -> bool:
    """Whether an error would come every time: not one of those that a lost neighbour or network brings."""
    from ray.exceptions import RayError

    if ran_out(error) or isinstance(error, FileNotFoundError):
        return True
    return not isinstance(error, (RuntimeError, OSError, RayError))


def _serve(config: dict[str, Any]) -> None:
    """What each worker does as long as it lives."""
    import ray

    from components.gather import rank
    from components.processor import release

    desk, work, number = config["desk"], config["work"], 0
    while (given := ray.get(desk.take.remote(number, rank=rank()))) is not None:
        number, task = given
        clock.on(node_name())
        clock.drain()  # of a task that failed
        try:
            result = work(task)
        except Exception as error:
            if hopeless(error):
                mistake = isinstance(error, UserError)
                said = str(error) if mistake else _words(rank(), error)
                ray.get(desk.give_up.remote(number, Failure(said, mistake, traceback.format_exc())))
            raise
        release()
        ray.get(desk.done.remote(number, result, clock.end_to_end(clock.drain()), rank=rank()))


class _Group:
    """One `fit`, in a process of Ray's, and the desk that it is asked through."""

    def __init__(self, kind: tuple[Any, ...], storage: Path) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.kind, self.busy, self._session = kind, False, _session()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._desk = ray.remote(num_cpus=0, scheduling_strategy=here)(Desk).remote(kind[1])
        # Not in a thread of this process: leaving Ray while one waits in its C++ can end in an abort, or hang.
        fit = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(_fit)
        self._fit = fit.remote(self._desk, kind, storage)
        self._deaths, self._given_up = 0, False

    def sound(self) -> bool:
        """Whether it waits for a task, with all the deaths to spare that its profile allows."""
        return self._lives() and not self._deaths and not self._given_up

    def run(self, task: dict[str, Any]) -> Any:
        """What came of a task."""
        import ray

        self._given_up = True  # until there is a result
        with clock.at("start"):  # but for what the first worker says of its own time
            outcome = self._desk.give.remote(task)
            if ray.wait([outcome, self._fit])[0] != [outcome]:
                raise self._reason()
        result, time, begun, failure = ray.get(outcome)
        self._deaths, self._given_up = self._deaths + begun - (failure is None), False
        if failure is not None:
            if failure.mistake:
                raise UserError(failure.said)
            error = RuntimeError(failure.said)
            error.add_note(failure.story)
            raise error
        clock.add(time)
        return result

    def end(self) -> None:
        """Send the workers home, and wait until they are gone. Those whose task was given up end with the session."""
        import ray

        if self._lives() and not self._given_up:
            ray.get(self._desk.close.remote())
            ray.wait([self._fit])

    def _lives(self) -> bool:
        import ray

        return self._session == _session() and not ray.wait([self._fit], timeout=0)[0]

    def _reason(self) -> Exception:
        """Why the workers went home before the training was done."""
        import ray

        try:
            return ray.get(self._fit) or _reason(None)
        except ray.exceptions.RayError as error:  # of the process itself
            return _reason(error)


def _fit(desk: Any, kind: tuple[Any, ...], storage: Path) -> Exception | None:
    """Ray Train's workers at a desk, until they are sent home; what was wrong where they went earlier."""
    tell_ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    work, workers, retries, gpu, patience = kind
    # Where others have the places, Ray Train would begin again `retries` times and then fail.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(max(START_SECONDS, patience)))
    trainer = TorchTrainer(
        _serve,
        train_loop_config={"desk": desk, "work": work},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="ray",
            **mirror.storage(storage),
            failure_config=FailureConfig(max_failures=retries, controller_failure_limit=retries),
            logging_config=LoggingConfig(log_level="WARNING"),
            worker_runtime_env={"env_vars": ONE_ARENA},
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        reason = _reason(error)
        reason.add_note(traceback.format_exc())
        return reason
    return None


def _session() -> str:
    """What tells a session of Ray from one before it."""
    import ray

    here = ray.get_runtime_context() if ray.is_initialized() else None
    return f"{here.get_node_id()} {here.get_job_id()}" if here else ""


def _reason(error: BaseException | None) -> Exception:
    """What a worker met, in its own words; those of its neighbours are about having lost it."""
    if error is None:
        return RuntimeError("the workers went home before the training was done, and Ray Train does not say why")
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for mistake in failures.values():
        if isinstance(mistake, UserError):
            return mistake
    for rank, failure in sorted(failures.items()):
        if "process has died" not in str(failure):
            return RuntimeError(_words(rank, failure))
    said = str(error)
    if "process has died" in said:
        return RuntimeError("a worker's process died, more often than `retries` allows (killed, or out of memory)")
    return RuntimeError(" ".join(said.split()) or f"Ray Train ended with {type(error).__name__}")


def _words(rank: int, error: Exception) -> str:
    return f"worker {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
