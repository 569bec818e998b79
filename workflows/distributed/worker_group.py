"""Groups of training workers. A group starts for a training and stays for the next ones.

A `fit` of Ray Train takes seconds to start its processes, and as long again to import torch. So one `fit` serves all
consecutive trainings of a driver: its workers take task after task from a queue. They end when a step of another kind
needs their processors (`resources.keep_warm`), or on a cluster that was joined after a while without a task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparring.components import timing
from sparring.components.config import UserError
from sparring.workflows.distributed import nodes, ray_train, resources
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_train import GroupSpec, Work
from sparring.workflows.distributed.resources import Resources
from sparring.workflows.distributed.session import ray_session, session_id
from sparring.workflows.distributed.task_queue import TaskQueue

KIND = "training workers"
IDLE_SECONDS = 60.0
"""Seconds without a task after which a group leaves a cluster that was joined."""
ALL = 1_000
"""More groups than there are."""


def train_together(work: Work, task: dict[str, Any], machine: Machine, *, storage: Path) -> Any:
    """Let each of the profile's workers call `work(task)`. Return the result of the first worker (rank 0).

    After a worker has died all start the task again, as often as the profile's `retries` says. On a cluster that was
    joined, workers whose node is lost cost no retry, and the remaining ones go on without them until Ray has others. An
    error that would come every time, or comes once too often, is raised in the worker's own words. `storage` is a
    directory that all nodes see, for Ray Train's own files.
    """
    cluster, gpu, joined = machine.cluster, machine.cuda, machine.cluster.address is not None
    ray = ray_session(cluster)
    workers, gpus = cluster.train.workers or 1, cluster.train.gpus if gpu else 0.0
    spec = GroupSpec(
        work,
        workers,
        cluster.retries,
        gpus,
        wait_seconds=cluster.wait_seconds if joined else 0,
        # A part of a model may be all that a worker has memory for.
        least=1 if joined and not cluster.train.shard else workers,
    )
    needs = Resources(gpus=workers * gpus) if gpu else Resources(cpus=workers * machine.train_threads)
    # The Ray of a run alone has more logical CPUs than the machine, so that idle workers take none from a map.
    holds = Resources(workers if joined else 0, workers * gpus)
    with resources.reserve(needs, machine.resources, kind=KIND, most=ALL) as warm:
        group = _chosen(warm, spec, holds)
        if group is None:
            nodes.wait_for_processors(ray, cluster, "GPU" if gpu else "CPU", workers, gpus or 1.0)
            group = _Group(spec, storage, IDLE_SECONDS if joined else None)
        try:
            return group.run(task)
        finally:
            group.keep(holds)


def _chosen(warm: list[_Group], spec: GroupSpec, holds: Resources) -> _Group | None:
    """Return a warm group with this spec. End groups with other specs, and keep the remaining ones."""
    chosen = None
    for group in warm:
        if group.spec != spec or not group.is_sound():
            group.end()
        elif chosen is None and group.claim():
            chosen = group
        else:
            group.keep(holds)
    return chosen


class _Group:
    """The workers of one `fit`, which runs in a Ray process, and the queue of their tasks."""

    def __init__(self, spec: GroupSpec, storage: Path, idle_seconds: float | None) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.spec, self._session = spec, session_id()
        same_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = ray.remote(num_cpus=0, scheduling_strategy=same_node)(TaskQueue).remote(idle_seconds)
        # Not in a thread of this process: leaving Ray while a thread waits in its C++ code can abort or hang.
        fit = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=same_node)(ray_train.fit)
        self._fit = fit.options(name="training").remote(self._queue, spec, storage)
        self._deaths, self._abandoned = 0, False

    def is_sound(self) -> bool:
        """Check that the group waits for a task and no worker has died: a task may count on all `retries`."""
        return self._is_alive() and not self._deaths and not self._abandoned

    def claim(self) -> bool:
        """Promise the group a task. Return False if its workers have just ended."""
        import ray

        claimed: bool = ray.get(self._queue.claim.remote())
        return claimed

    def keep(self, holds: Resources) -> None:
        """Leave the group to the next training, which takes or ends it. `holds` is what it keeps from other steps."""
        import ray

        if self._is_alive():
            if not self._abandoned:
                ray.get(self._queue.release.remote())
            resources.keep_warm(KIND, self, holds, self.end)

    def run(self, task: dict[str, Any]) -> Any:
        """Let the workers do a task, and return its result."""
        import ray

        self._abandoned = True  # until there is a result
        with timing.timed("start"):  # the workers' own times take precedence
            outcome = self._queue.give.remote(task)
            if ray.wait([outcome, self._fit])[0] != [outcome]:
                raise self._failure_reason()
        result, time, starts, failure = ray.get(outcome)
        self._deaths, self._abandoned = self._deaths + starts - (failure is None), False
        if failure is not None:
            if failure.user_error:
                raise UserError(failure.message)
            error = RuntimeError(failure.message)
            error.add_note(failure.traceback)
            raise error
        timing.record(time)
        return result

    def end(self) -> None:
        """End the workers and wait for them. Workers with an abandoned task end with Ray's session."""
        import ray

        if self._is_alive() and not self._abandoned:
            ray.get(self._queue.close.remote())
            ray.wait([self._fit])

    def _is_alive(self) -> bool:
        import ray

        return self._session == session_id() and not ray.wait([self._fit], timeout=0)[0]

    def _failure_reason(self) -> Exception:
        """Return the reason why the workers ended before the task was done."""
        import ray

        try:
            return ray.get(self._fit) or ray_train.failure_reason(None)
        except ray.exceptions.RayError as error:  # the process that ran `fit` died
            return ray_train.failure_reason(error)
