"""How trials that run at once divide the cluster among them."""

import sys
from typing import Self

from pydantic import PrivateAttr

from sparring.workflows.distributed.cluster import SPARE_CPUS, Cluster, Pool, cores
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.estimating.site import available_memory

TRIAL_MEMORY = 4 * 2**30
"""Bytes of memory that a trial on CPUs needs."""


class Share(Cluster):
    """One of several equal parts of a cluster profile."""

    _parts: int = PrivateAttr(1)
    _capacity: int = PrivateAttr(1)

    @classmethod
    def of(cls, cluster: Cluster, *, parts: int, capacity: int) -> Self:
        """One of so many parts of a profile; `capacity` is the number of trials that a Ray started here has CPUs for.

        Where the profile leaves the threads of training to be counted, they are divided too.
        """
        tree = cluster.model_dump(mode="json")
        if parts > 1 and not cluster.train.threads:
            tree["train"]["threads"] = max(1, cluster.machine_cores() // (cluster.train.workers or 1) // parts)
        share = cls.model_validate(tree)
        share._parts, share._capacity = parts, capacity
        return share

    def reserved_cpus(self) -> int:
        """Logical CPUs that a Ray that starts on this machine does not use for the map over shards, of any trial."""
        return 0 if self.address else SPARE_CPUS + self.parallel_steps * (self.train.workers or 1) * self._capacity

    def workers(self, pool: Pool, shards: int, *, gpu: bool = False) -> int:
        """How many workers of a pool run at once in this part: no more than there are shards."""
        return max(1, min(super().workers(pool, sys.maxsize, gpu=gpu) // self._parts, shards))


def machine_capacity(workers: int) -> int:
    """How many trials, of so many training workers each, the cores and the memory of this machine are enough for."""
    return max(1, min(cores() // workers, int(available_memory() // TRIAL_MEMORY)))


def concurrent_trials(cluster: Cluster, capacity: int, count: int) -> int:
    """How many of `count` trials run at once: what the profile says, and no more than the processors are enough for.

    `capacity` is the answer on one machine without GPUs.
    """
    workers = cluster.train.workers or 1
    if cluster.mode == "inline":
        return capacity
    total = ray_session(cluster).cluster_resources()
    if cluster.cuda():
        most = int(total.get("GPU", 0) / (workers * cluster.train.gpus))
    elif cluster.address:
        most = int(total.get("CPU", 0)) // (workers + 1)  # one more for the map over shards
    else:
        return capacity
    return max(1, min(most, cluster.trials or most, count))
