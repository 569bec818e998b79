"""The machines of a cluster profile as an estimate sees them: this one, those of a joined cluster, or stated ones."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.limits import available_memory, cores
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.store import s3

GB = 1e9

Pool = Literal["driver", "map", "score", "java", "train", "one"]
"""Place of the work: the driver, all workers of a pool of the cluster profile, or one worker."""


@dataclass(frozen=True)
class Site:
    """Machines, all alike."""

    cluster: Cluster
    nodes: int
    cores: int
    """Cores of each machine."""
    memory: float
    """Bytes of each machine."""
    disk: float
    """Free bytes at the store. Infinite if this is not known."""
    gpus: int = 0
    """GPUs of each machine."""
    gpu_memory: float = 0.0
    """Bytes of each GPU."""

    @property
    def cuda(self) -> bool:
        """True if models run on GPUs."""
        return self.gpus > 0 and self.cluster.device != "cpu"

    def check(self) -> None:
        """Check that the machines have the processors that the profile asks for, as `Machine.check` does, but without
        starting Ray. Raise UserError."""
        profile = self.cluster
        if profile.hardware is None and profile.address:
            resolve_machine(profile)  # its machines need not be alike
        elif profile.mode == "ray":
            self.machine().check()

    def machine(self) -> Machine:
        """The machine that a run would find."""
        count = max(1, self.nodes)
        return Machine(self.cluster, count, self.cores, count * self.cores, count * self.gpus, self.memory)

    def workers(self, pool: Pool, *, gpu: bool = True) -> int:
        """Count the workers of a pool on all machines. `gpu` says whether they use GPUs if there are any."""
        if pool in ("driver", "one"):
            return 1
        profile = self.cluster
        share = {"map": profile.map, "score": profile.scoring_pool(), "java": profile.java, "train": profile.train}[
            pool
        ]
        if share.workers is not None:
            return max(1, share.workers)
        if self.cuda and gpu and pool != "java":
            return max(1, int(self.nodes * self.gpus / share.gpus))
        return 1 if pool == "train" else max(1, self.nodes * self.cores // share.threads)

    def workers_of_node(self, pool: Pool) -> int:
        """Count the workers of a pool on the machine that has most of them."""
        return -(-self.workers(pool) // self.nodes)

    def threads(self, pool: Pool) -> int:
        """Count the threads of one worker."""
        if pool == "train":
            return self.cluster.train.threads or max(1, self.cores // self.workers_of_node("train"))
        pools = {"score": self.cluster.scoring_pool(), "java": self.cluster.java}
        return pools.get(pool, self.cluster.map).threads


def site(cluster: Cluster, store: Path) -> Site:
    """Find the machines of a profile: those that `hardware` states, those of the joined cluster, or this one."""
    stated = cluster.hardware
    if stated is not None:
        return Site(
            cluster,
            stated.nodes,
            stated.cores,
            stated.memory_gb * GB,
            stated.disk_gb * GB,
            stated.gpus if cluster.device != "cpu" else 0,
            stated.gpu_memory_gb * GB,
        )
    if cluster.mode == "ray" and cluster.address:
        return _joined(cluster, store)
    gpus, gpu_memory = (0, 0.0) if cluster.device == "cpu" else _gpus()
    return Site(cluster, 1, cores(), available_memory(), free(store), gpus, gpu_memory)


def _joined(cluster: Cluster, store: Path) -> Site:
    """Let the smallest machine of a joined cluster stand for all."""
    nodes = [node["Resources"] for node in ray_session(cluster).nodes() if node["Alive"]]
    nodes = [node for node in nodes if node.get("CPU")] or nodes
    gpus = min(int(node.get("GPU", 0)) for node in nodes)
    memory = min(float(node.get("memory", 0)) + float(node.get("object_store_memory", 0)) for node in nodes)
    cpus = min(int(node.get("CPU", 1)) for node in nodes)
    return Site(cluster, len(nodes), cpus, memory, free(store), gpus, _gpus()[1] or 80 * GB)


def _gpus() -> tuple[int, float]:
    """Count this machine's GPUs, and the bytes of one."""
    if not Path("/proc/driver/nvidia").exists():  # torch would have to be imported to learn that there are none
        return 0, 0.0
    import torch

    count = torch.cuda.device_count()
    return count, float(torch.cuda.get_device_properties(0).total_memory) if count else 0.0


def free(store: Path) -> float:
    """Count the free bytes at a store. Infinite for a store on S3, whose cache holds parts."""
    if s3.is_cached(store):
        return float("inf")
    folder = next(folder for folder in (store, *store.parents) if folder.exists())
    return float(shutil.disk_usage(folder).free)
