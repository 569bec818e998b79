"""Number of trials that run at once on a machine."""

from sparring.workflows.distributed.limits import available_memory, cores
from sparring.workflows.distributed.machine import Machine

TRIAL_MEMORY = 4 * 2**30
"""Bytes of memory that a trial on CPUs needs."""


def machine_capacity(workers: int) -> int:
    """Count the trials, with `workers` training workers each, that this machine has cores and memory for."""
    return max(1, min(cores() // workers, int(available_memory() // TRIAL_MEMORY)))


def concurrent_trials(machine: Machine, capacity: int, count: int) -> int:
    """Count the trials, of `count`, that run at once. It is the profile's number, and no more than there are processors
    for.

    `capacity` is the answer on one machine without GPUs.
    """
    profile = machine.cluster
    workers = profile.train.workers or 1
    if profile.mode == "ray" and machine.cuda:
        most = int(machine.gpus / (workers * profile.train.gpus))
    elif profile.address:
        most = machine.cpus // (workers + 1)  # one more for the map over shards
    else:
        return capacity
    return max(1, min(most, profile.trials or most, count))
