"""One `fit` of Ray Train: workers that do the tasks of a queue until it is closed, and the meaning of their errors."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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


class GroupSpec(NamedTuple):
    """Everything that must be equal for a training to use the workers of another one."""

    work: Work
    workers: int
    retries: int
    gpus: float
    """GPUs of each worker. 0 on CPUs."""
    wait_seconds: int


def fit(queue: Any, spec: GroupSpec, storage: Path) -> Exception | None:
    """Run Ray Train's workers until the queue is closed. Return the reason if they ended earlier."""
    set_ray_environment()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    # While another driver has the processors, each start that runs into this limit costs one of the `retries`.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(max(START_SECONDS, spec.wait_seconds)))
    trainer = TorchTrainer(
        _do_tasks,
        train_loop_config={"queue": queue, "work": spec.work},
        scaling_config=ScalingConfig(
            num_workers=spec.workers, use_gpu=spec.gpus > 0, resources_per_worker={"CPU": 1, "GPU": spec.gpus}
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
        reason = failure_reason(error)
        reason.add_note(traceback.format_exc())
        return reason
    return None


def _do_tasks(config: dict[str, Any]) -> None:
    """Do one task of the queue after another, in each worker, as long as the worker lives."""
    import ray

    from sparring.components.compute.gather import rank
    from sparring.components.compute.processor import release_memory

    queue, work, number = config["queue"], config["work"], 0
    while (taken := ray.get(queue.take.remote(number, rank=rank()))) is not None:
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


def _message(rank: int, error: Exception) -> str:
    """Return a worker's error as one line."""
    return f"worker {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
