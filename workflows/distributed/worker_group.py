"""Groups of training workers. A group starts for a training and stays for the next ones.

A `fit` of Ray Train takes seconds to start its processes, and as long again to import torch. So one `fit` serves all
consecutive trainings of a driver: its workers take task after task from a queue.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sparring.components import timing
from sparring.components.config import UserError
from sparring.workflows.distributed import nodes, ray_train
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_train import GroupSpec, Work
from sparring.workflows.distributed.resources import Resources, reserve
from sparring.workflows.distributed.session import ray_session, session_id
from sparring.workflows.distributed.task_queue import TaskQueue


def train_together(work: Work, task: dict[str, Any], machine: Machine, *, storage: Path) -> Any:
    """Let each of the profile's workers call `work(task)`. Return the result of the first worker (rank 0).

    After a worker has died all start the task again, as often as the profile's `retries` says. An error that would come
    every time, or comes once too often, is raised in the worker's own words. `storage` is a directory that all nodes
    see, for Ray Train's own files.

    Workers that occupy a resource that others wait for, such as a GPU or a place on a cluster, are shut down after each
    task.
    """
    cluster, gpu = machine.cluster, machine.cuda
    ray = ray_session(cluster)
    workers, gpus = cluster.train.workers or 1, cluster.train.gpus if gpu else 0.0
    needs = Resources(gpus=workers * gpus) if gpu else Resources(cpus=workers * machine.train_threads)
    with reserve(needs, machine.resources):
        nodes.wait_for_processors(ray, cluster, "GPU" if gpu else "CPU", workers, gpus or 1.0)
        wait_seconds = cluster.wait_seconds if cluster.address else 0
        group = _acquire(GroupSpec(work, workers, cluster.retries, gpus, wait_seconds), storage)
        try:
            return group.run(task)
        finally:
            group.busy = False
            if gpu or cluster.address:
                shut_down(group)


def shut_down(*groups: _Group) -> None:
    """Shut down the groups, or all existing ones if none is named, and wait until their workers have ended."""
    for group in groups or tuple(_groups):
        group.end()
        if group in _groups:
            _groups.remove(group)


def _acquire(spec: GroupSpec, storage: Path) -> _Group:
    """Return an idle group with this spec. If there is none, shut down all idle groups and start a new one."""
    with _acquiring:
        idle = [group for group in _groups if not group.busy]
        group = next((group for group in idle if group.spec == spec and group.is_sound()), None)
        if group is None:
            if idle:
                shut_down(*idle)
            group = _Group(spec, storage)
            _groups.append(group)
        group.busy = True
        return group


_groups: list[_Group] = []
_acquiring = threading.Lock()


class _Group:
    """The workers of one `fit`, which runs in a Ray process, and the queue of their tasks."""

    def __init__(self, spec: GroupSpec, storage: Path) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.spec, self.busy, self._session = spec, False, session_id()
        same_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = ray.remote(num_cpus=0, scheduling_strategy=same_node)(TaskQueue).remote(spec.workers)
        # Not in a thread of this process: leaving Ray while a thread waits in its C++ code can abort or hang.
        fit = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=same_node)(ray_train.fit)
        self._fit = fit.remote(self._queue, spec, storage)
        self._deaths, self._abandoned = 0, False

    def is_sound(self) -> bool:
        """Check that the group waits for a task and no worker has died: a task may count on all `retries`."""
        return self._is_alive() and not self._deaths and not self._abandoned

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
