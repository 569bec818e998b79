"""Find and kill the processes of a run on a cluster that it joined: those of its own Ray job, on every node.

Ray gives each worker the id of its job and of its node's raylet in the environment, which Java inherits. A small task
on each node reads and kills there. Nothing of another job is touched. A node is killed only if no other job has a
worker or a driver on it, if it is not the head, and if the remaining nodes have the processors for training.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from sparring.workflows.chaos import victims
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.session import ray_session

JOB, RAYLET = "RAY_JOB_ID", "RAY_RAYLET_PID"
"""Environment variables of a worker: its job, and the process id of its node's raylet."""
NO_JOB = "f" * 8
"""Job of Ray's own helpers."""
SECONDS = 60.0
"""Seconds in which a node must answer."""


class OnNode(NamedTuple):
    """Processes of one job on a node."""

    processes: list[tuple[int, float, str]]
    """Process ids, times of their start, and command lines of the job's processes."""
    raylet: tuple[int, float, str]
    """The same of the node's raylet."""
    is_shared: bool
    """True if another job has a process on the node."""


class Remote:
    """A process on some node of a cluster."""

    def __init__(self, node: str, process: int, started: float) -> None:
        self._node, self._process, self._started = node, process, started

    def kill(self) -> None:
        """Kill the process. NoSuchProcess if it has ended."""
        if not _on(self._node, kill_process, self._process, self._started):
            raise psutil.NoSuchProcess(self._process)


class Finder:
    """Finds the processes of the runs that join a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._ray = cluster, ray_session(cluster)

    def find(self, driver: int, kind: str) -> list[Any]:
        """Find the processes of a kind that belong to the run of a driver on this machine."""
        if kind == victims.DRIVER:
            return victims.find(driver, kind)
        job = self._job(driver)
        if job is None:
            return []
        asking = self._ray.get_runtime_context().get_job_id()
        processes: list[Any] = []
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        for node in nodes:
            present = _on(node["NodeID"], look, job, asking)
            if present is None:
                continue
            if kind != victims.NODE:
                wanted = [
                    process for process in present.processes if victims.matches(process[2], victims.VICTIMS[kind].parts)
                ]
            else:
                may_die = self._may_die(node, nodes, job, asking) and not present.is_shared
                wanted = [present.raylet] if may_die else []
            processes += [Remote(node["NodeID"], process, started) for process, started, _ in wanted]
        return processes

    def _job(self, driver: int) -> str | None:
        """Return the id of a driver's job; None if the driver has not joined yet."""
        from ray.util import get_node_ip_address

        address = get_node_ip_address()
        jobs = [job for job in _jobs() if (job["DriverPid"], job["DriverIPAddress"]) == (driver, address)]
        return str(jobs[0]["JobID"]) if jobs else None

    def _may_die(self, node: dict[str, Any], nodes: list[dict[str, Any]], job: str, asking: str) -> bool:
        """Check that a node is not the head, has no other job's driver, and that the others suffice for training."""
        heads = [member for member in nodes if "node:__internal_head__" in member["Resources"]]
        place = node["NodeManagerAddress"]
        drivers = {entry["DriverIPAddress"] for entry in _jobs() if entry["JobID"] not in (job, asking)}
        if node in heads or (place in drivers and place not in {head["NodeManagerAddress"] for head in heads}):
            return False
        pool, kind = self._cluster.train, "CPU" if self._cluster.device == "cpu" else "GPU"
        rest = sum(member["Resources"].get(kind, 0.0) for member in nodes if member is not node)
        return bool(rest >= (pool.workers or 1) * (pool.gpus if kind == "GPU" else 1))


def look(job: str, asking: str) -> OnNode:
    """Find a job's processes on the node that runs this. `asking` is the job that asks."""
    raylet = psutil.Process(int(os.environ[RAYLET]))
    processes, is_shared = [], False
    for process in raylet.children(recursive=True):
        with suppress(psutil.Error):
            owner = process.environ().get(JOB, NO_JOB)
            if owner == job:
                processes.append((process.pid, process.create_time(), " ".join(process.cmdline())))
            is_shared = is_shared or owner not in (job, asking, NO_JOB)
    return OnNode(processes, (raylet.pid, raylet.create_time(), ""), is_shared)


def kill_process(process: int, started: float) -> bool:
    """Kill a process of this node; return False if it had ended. A younger one only has the same id."""
    with suppress(psutil.NoSuchProcess):
        running = psutil.Process(process)
        if running.create_time() == started:
            running.kill()
            return True
    return False


def _on(node: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function on a node. Return None if the node dies, or True for its own death."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    try:
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function).remote(*arguments)
        return ray.get(task, timeout=SECONDS)
    except ray.exceptions.RayError:
        return True if function is kill_process else None


def _jobs() -> list[dict[str, Any]]:
    """List the living jobs of the cluster."""
    from ray._private.state import state  # the public list of jobs asks the dashboard, which may be off

    return [job for job in state.job_table() if not job["IsDead"]]
