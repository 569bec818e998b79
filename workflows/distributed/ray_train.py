"""One `fit` of Ray Train: workers that do the tasks of a queue until it is closed, and the meaning of their errors.

Ray Train starts the workers again after a failure, on a cluster also with fewer of them while a node is missing. It
counts failures by cause: a crash costs one of the profile's `retries`, a node that was announced as preempted costs
none, and starts that wait for processors have a limit of their own. What it lacks is that a node may also be lost
without an announcement, which it counts as a crash. So after a `fit` in which a node was lost there is another one.
"""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sparring.components import timing
from sparring.components.config import UserError
from sparring.workflows.distributed.oom import is_out_of_memory
from sparring.workflows.distributed.session import node_name, set_ray_environment
from sparring.workflows.distributed.task_queue import Failure
from sparring.workflows.store import s3

Work = Callable[[dict[str, Any]], Any]

# Ray Train calls its function in a thread. The C library gives a thread an arena of its own, in heaps of 64 MB that it
# unmaps as soon as one is empty: with tensors of about that size, half the time of an update went into the kernel.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
START_SECONDS = 60
"""Minimum number of seconds that Ray Train waits for its workers to start."""
NOTICE_SECONDS = 15.0
"""Seconds in which Ray notices that a node of a cluster is dead."""


class GroupSpec(NamedTuple):
    """Everything that must be equal for a training to use the workers of another one."""

    work: Work
    workers: int
    retries: int
    gpus: float
    """GPUs of each worker. 0 on CPUs."""
    wait_seconds: int
    least: int
    """Minimum number of workers to go on with after a node is lost."""


def fit(queue: Any, spec: GroupSpec, storage: Path) -> Exception | None:
    """Run Ray Train's workers until the queue is closed. Return the reason if they ended earlier.

    A node that is lost costs no retry: the workers start again with all `retries`. That ends, as it needs a lost node
    each time.
    """
    while True:
        nodes = living_nodes() if spec.wait_seconds else set()
        if spec.least < spec.workers:
            look_for_nodes()
        error = _fit(queue, spec, storage)
        if error is None:
            return None
        if not is_death(error) or not is_one_lost(nodes):
            reason = failure_reason(error)
            reason.add_note("".join(traceback.format_exception(error)))
            return reason


def living_nodes() -> set[str]:
    """Return the ids of the cluster's living nodes."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def look_for_nodes() -> None:
    """Let Ray Train see which nodes have joined and which are lost. By itself it looks every 20 s, and would wait for
    workers on lost nodes."""
    import ray
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    coordinator: Any = get_or_create_autoscaling_coordinator()
    ray.get(coordinator.get_reserved_resources.remote("sparring", recompute=True))


def is_one_lost(nodes: set[str]) -> bool:
    """Check whether one of the nodes is no longer alive. Ray may need seconds to notice that."""
    end = time.monotonic() + NOTICE_SECONDS
    while nodes and time.monotonic() < end:
        if nodes - living_nodes():
            return True
        time.sleep(0.5)
    return False


def _fit(queue: Any, spec: GroupSpec, storage: Path) -> Exception | None:
    """Run one `fit`. Return Ray's error if it ended before the queue was closed."""
    set_ray_environment()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    # Ray Train tries `controller_failure_limit` times more, so that all starts together may wait for `wait_seconds`.
    start_seconds = max(START_SECONDS, spec.wait_seconds // (1 + spec.retries))
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(start_seconds))
    elastic = spec.least < spec.workers
    trainer = TorchTrainer(
        _do_tasks,
        train_loop_config={"queue": queue, "work": spec.work},
        scaling_config=ScalingConfig(
            num_workers=(spec.least, spec.workers) if elastic else spec.workers,
            use_gpu=spec.gpus > 0,
            resources_per_worker={"CPU": 1, "GPU": spec.gpus},
        ),
        run_config=RunConfig(
            name="ray",
            **s3.ray_storage(storage),
            failure_config=FailureConfig(max_failures=spec.retries, controller_failure_limit=spec.retries),
            logging_config=LoggingConfig(log_level="WARNING"),
            worker_runtime_env={"env_vars": ONE_ARENA},
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        return error
    return None


def _do_tasks(config: dict[str, Any]) -> None:
    """Do one task of the queue after another, in each worker, as long as the worker lives."""
    import ray

    from sparring.components.compute.gather import rank, workers
    from sparring.components.compute.processor import release_memory

    queue, work, number = config["queue"], config["work"], 0
    set_network_interface(ray.util.get_node_ip_address())
    while (taken := ray.get(queue.take.remote(number, rank=rank(), workers=workers()))) is not None:
        number, task = taken
        timing.set_node(node_name())
        timing.drain()  # leftovers of a task that failed
        try:
            result = work(task)
        except Exception as error:
            if is_permanent(error):
                user_error = isinstance(error, UserError)
                message = str(error) if user_error else _message(rank(), error)
                ray.get(queue.give_up.remote(number, Failure(message, user_error, traceback.format_exc())))
            raise
        release_memory()
        ray.get(queue.done.remote(number, result, timing.condensed(timing.drain()), rank=rank()))


def set_network_interface(address: str) -> None:
    """Let gloo use the network interface with this address.

    On its own it takes the interface of the host's name, which may be the loopback interface. NCCL chooses better.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def is_permanent(error: Exception) -> bool:
    """Check whether an error would come back at every retry. The loss of another worker or of the network would not."""
    from ray.exceptions import RayError

    from sparring.components.training.self_check import SelfCheckError  # imports torch

    if is_out_of_memory(error) or isinstance(error, (FileNotFoundError, SelfCheckError)):
        return True
    return not isinstance(error, (RuntimeError, OSError, RayError))


def failure_reason(error: BaseException | None) -> Exception:
    """Return why a `fit` ended, in the words of the worker that failed first. The remaining workers only report that
    they lost it."""
    if error is None:
        return RuntimeError("the workers ended before the training was done, and Ray Train does not say why")
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for failure in failures.values():
        if isinstance(failure, UserError):
            return failure
    for rank, failure in sorted(failures.items()):
        if "process has died" not in str(failure):
            return RuntimeError(_message(rank, failure))
    message = str(error)
    if "process has died" in message:
        return RuntimeError("a worker's process died, more often than `retries` allows (killed, or out of memory)")
    return RuntimeError(" ".join(message.split()) or f"Ray Train ended with {type(error).__name__}")


def is_death(error: Exception) -> bool:
    """Check whether a worker died, with its process or its node. The remaining workers then report that they lost it.

    A start that found no processors counts too, since they may have been those of a lost node. Until Ray notices that a
    node is lost, its workers are unavailable.
    """
    from ray.train import ControllerError

    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    reasons = " ".join(map(str, failures.values()))
    return isinstance(error, ControllerError) or "has died" in reasons or "is unavailable" in reasons


def _message(rank: int, error: Exception) -> str:
    """Return a worker's error as one line."""
    return f"worker {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
