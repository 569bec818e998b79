"""The machine: the processors and the memory that a run has found. It is resolved once, when the run starts.

A step takes its number of workers, its device and its threads from here. So a node that dies during a run cannot turn a
run on GPUs into a run on CPUs: the step waits for the GPU, or fails.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from sparring.components.config import UserError
from sparring.workflows.distributed import limits, nodes
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.resources import Resources
from sparring.workflows.distributed.session import ray_session


@dataclass(frozen=True)
class Machine:
    """Processors and memory of a run: the profile, and what was found for it.

    Example: `resolve_machine(Cluster(mode="inline"))`
    """

    cluster: Cluster
    """The profile that was resolved."""
    nodes: int
    """Number of nodes."""
    cores: int
    """Cores of the largest node. No worker can have more threads."""
    cpus: int
    """CPUs of all nodes for maps over shards. A Ray that starts for the run has more logical ones (`session`)."""
    gpus: float
    """GPUs of all nodes that models run on: 0 with `device: cpu`."""
    memory: float
    """Bytes of memory of the smallest node."""
    devices: tuple[str, ...] = ()
    """Names of the kinds of GPUs, as Ray or torch names them."""
    parts: int = 1
    """Number of equal parts into which trials that run at once divide the processors. A step has one part."""

    @property
    def cuda(self) -> bool:
        """Models run on GPUs."""
        return self.gpus > 0

    @property
    def resources(self) -> Resources:
        """Processors that concurrent steps share: those of this trial, if trials divide the machine."""
        return Resources(max(1, self.cpus // self.parts), self.gpus / self.parts)

    @property
    def batch_tokens(self) -> int:
        """Maximum number of tokens in one pass through a model."""
        return self.cluster.batch_tokens(cuda=self.cuda)

    @property
    def train_threads(self) -> int:
        """Number of threads of one training worker."""
        pool = self.cluster.train
        return pool.threads or max(1, self.cores // (pool.workers or 1) // self.parts)

    @property
    def task_threads(self) -> int:
        """Most threads of a single task, such as building an index.

        On a cluster that was joined, one core of a node stays free: Tune's trials and the programs of others hold parts
        of a core, and a task that asks for every core of a node would wait for them.
        """
        return max(1, (self.cores - (self.cluster.address is not None)) // self.parts)

    def workers(self, pool: Pool, shards: int, *, gpu: bool = False) -> int:
        """Count the workers of a pool that run at once: no more than there are shards, and one with `mode: inline`."""
        if self.cluster.mode == "inline":
            return 1
        most = pool.workers or int(self.gpus / pool.gpus if gpu else self.cpus)
        return max(1, min(most // self.parts, shards))

    def for_batch(self, rows: int) -> Self:
        """Choose the number of training workers if the profile leaves it open: all GPUs, with a row of the batch or
        more on each, or 1 worker on CPUs.

        The training then measures how many of them are worth while (`components.training.efficiency`).
        """
        pool = self.cluster.train
        if pool.workers is not None:
            return self
        train = pool.model_copy(update={"workers": self.workers(pool, rows, gpu=True) if self.cuda else 1})
        return replace(self, cluster=self.cluster.model_copy(update={"train": train}))

    def record(self) -> dict[str, Any]:
        """Return the processors and memory that were found, for the record of a step."""
        return {name: value for name, value in vars(self).items() if name not in ("cluster", "parts")}

    def check(self) -> None:
        """Check that the profile asks for no more than there is. UserError otherwise: such a step would fail or wait
        for ever."""
        profile = self.cluster
        if profile.device == "cuda" and not self.cuda:
            where = "in the Ray cluster" if profile.mode == "ray" else "on this machine"
            raise UserError(f"cluster: device: cuda is asked for, and there is no GPU {where}; accepted: auto, cpu")
        if profile.mode == "inline":
            return
        maps = {"map": profile.map, "score": profile.scoring_pool()}
        if self.cuda:
            kind, count, pools = "GPU", int(self.gpus), {**maps, "train": profile.train}
        elif profile.address:
            kind, count, pools = "CPU", self.cpus, {"train": profile.train}
        else:  # a Ray that starts for the run has a logical CPU for each training worker
            kind, count, pools = "CPU", self.cpus, {}
        for key, pool in pools.items():
            workers, most = pool.workers or 1, int(count / pool.gpus)
            if workers > most:
                share = f"{pool.gpus:g} of a {kind}" if pool.gpus < 1 else f"a {kind}"
                raise UserError(
                    f"cluster: {key}.workers: {workers} workers with {share} each are asked for, and there are {count} "
                    f"{kind}s; accepted: 1 to {most}"
                )
        for key, pool in {**maps, "java": profile.java}.items():
            if pool.threads > self.cores:
                raise UserError(
                    f"cluster: {key}.threads: {pool.threads} for each worker are asked for, and no machine has "
                    f"more than {self.cores} cores; accepted: 1 to {self.cores}"
                )


def resolve_machine(cluster: Cluster, store: Path | None = None, *, trials: int = 1) -> Machine:
    """Find the processors for a profile, and check that they are enough. UserError if they are not.

    This starts Ray or joins the profile's cluster, except for `mode: inline` and for one machine with `device: cpu`. If
    the run joins a cluster and `store` is the run's, wait for the nodes and check each of them. `trials` is the number
    of trials that a Ray which starts here has CPUs for.
    """
    joins = cluster.mode == "ray" and cluster.address is not None
    if joins and store is not None:
        nodes.check_store(store)
        nodes.wait_for_nodes(ray_session(cluster), cluster)
    machine = _joined(cluster) if joins else _local(cluster, trials)
    machine.check()
    if joins and store is not None:
        if cluster.device == "auto":
            devices = (
                f"models run on {machine.gpus:g} GPUs" if machine.cuda else "no GPU was found, so models run on CPUs"
            )
            print(f"device: auto: {devices}", file=sys.stderr)
        nodes.check_nodes(ray_session(cluster), store)
    return machine


def _joined(cluster: Cluster) -> Machine:
    """Find the processors of a cluster that was joined."""
    ray = ray_session(cluster)
    total = ray.cluster_resources()
    living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    working = [node for node in living if node.get("CPU")] or living
    gpus = 0.0 if cluster.device == "cpu" else float(total.get("GPU", 0))
    return Machine(
        cluster,
        nodes=len(working),
        cores=max(1, *(int(node.get("CPU", 0)) for node in working)),
        cpus=int(total.get("CPU", 0)),
        gpus=gpus,
        memory=min(float(node.get("memory", 0)) + float(node.get("object_store_memory", 0)) for node in working),
        devices=_devices(total) if gpus else (),
    )


def _local(cluster: Cluster, trials: int) -> Machine:
    """Find the processors of this machine."""
    gpus, devices = 0.0, tuple[str, ...]()
    if cluster.device == "cpu":
        pass
    elif cluster.mode == "ray":
        total = ray_session(cluster, trials=trials).cluster_resources()
        gpus, devices = float(total.get("GPU", 0)), _devices(total)
    else:
        import torch  # slow to import

        if torch.cuda.is_available():
            gpus, devices = 1.0, (torch.cuda.get_device_name(),)
    cores = limits.cores()
    return Machine(cluster, 1, cores, cores, gpus, limits.available_memory(), devices)


def _devices(resources: dict[str, float]) -> tuple[str, ...]:
    """Read the kinds of GPUs from Ray's resources, such as `accelerator_type:H100`."""
    prefix = "accelerator_type:"
    return tuple(sorted(name.removeprefix(prefix) for name in resources if name.startswith(prefix)))
