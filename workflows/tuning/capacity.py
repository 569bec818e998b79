"""Number of trials that run at once, and the memory that each one asks Ray for."""

from sparring.workflows.distributed import nodes
from sparring.workflows.distributed.limits import available_memory, cores
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.session import ray_session

TRIAL_MEMORY = 4 * 2**30
"""Bytes of memory that a trial on CPUs needs, with all its workers."""
DRIVER_MEMORY = 2**30
"""Bytes of memory that the processes of a trial need which plan its steps. A trial asks Ray for them."""


def machine_capacity(workers: int) -> int:
    """Count the trials, with `workers` training workers each, that this machine has cores and memory for."""
    return max(1, min(cores() // workers, int(available_memory() // TRIAL_MEMORY)))


def concurrent_trials(machine: Machine, capacity: int, count: int) -> int:
    """Count the trials, of `count`, that run at once. It is the profile's number, and no more than there is room for.

    There is room for what is free now. A cluster that grows has room for as many as the profile says. `capacity` is the
    answer on one machine without GPUs.
    """
    profile = machine.cluster
    if profile.mode == "inline" or (profile.address is None and not machine.cuda):
        return capacity
    if profile.trials and profile.address and nodes.may_grow(ray_session(profile)):
        return min(profile.trials, count)
    free, workers = nodes.free_nodes(), profile.train.workers or 1
    memory = DRIVER_MEMORY if machine.cuda else TRIAL_MEMORY
    room = [
        sum(int(node.get("CPU", 0)) for node in free) / workers,
        sum(node.get("memory", 0) for node in free) / memory,
    ]
    if machine.cuda:
        room.append(sum(node.get("GPU", 0) for node in free) / (workers * profile.train.gpus))
    most = int(min(room))
    return max(1, min(most, profile.trials or most, count))


def driver_memory() -> float:
    """Return the memory that a trial asks Ray for: no more than the largest node has, if other work leaves it."""
    return float(min(DRIVER_MEMORY, max(nodes.node_memory(), default=DRIVER_MEMORY)))
