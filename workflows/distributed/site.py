"""The machines of a cluster profile as an estimate sees them: this one, those that were joined, or stated ones."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.limits import available_memory, cores
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.store import s3
from sparring.workflows.store.cost import Made, Need, Pool

GB = 1e9


@dataclass(frozen=True)
class Site:
    """What steps run on."""

    cluster: Cluster
    nodes: int
    cores: int
    """Of each machine."""
    memory: float
    """Bytes of each machine."""
    disk: float
    """Bytes that are free where the store lies; infinite where that is not known."""
    gpus: int = 0
    """Of each machine."""
    gpu_memory: float = 0.0
    """Bytes of each GPU."""

    @property
    def cuda(self) -> bool:
        """Whether models run on GPUs."""
        return self.gpus > 0 and self.cluster.device != "cpu"

    def check(self) -> None:
        """UserError where the profile asks for more processors than there are, as `Machine.check` says it of a cluster
        that is here; it starts no Ray."""
        profile = self.cluster
        if profile.hardware is None and profile.address:
            resolve_machine(profile)  # its machines need not be alike
        elif profile.mode == "ray":
            Machine(
                profile, self.nodes, self.cores, self.nodes * self.cores, self.nodes * self.gpus, self.memory
            ).check()

    def workers(self, pool: Pool, *, gpu: bool = True) -> int:
        """Workers of a pool at once on all machines, however little work there is; `gpu` says whether they use GPUs
        where there are any."""
        if pool in ("driver", "one"):
            return 1
        profile = self.cluster
        own = {"map": profile.map, "score": profile.scoring_pool(), "java": profile.java, "train": profile.train}[pool]
        if own.workers is not None:
            return max(1, own.workers)
        if self.cuda and gpu and pool != "java":
            return max(1, int(self.nodes * self.gpus / own.gpus))
        return 1 if pool == "train" else max(1, self.nodes * self.cores // own.threads)

    def pass_through(self, model: Made, pool: Literal["map", "score"]) -> Need:
        """What a worker that runs a model needs: the weights in two precisions, and a layer's states of one pass."""
        shape = model.shape
        states = 4.0 * self.cluster.batch_tokens(cuda=self.cuda) * (4 * shape.width + shape.middle)
        advice = f"in the profile (--cluster), fewer {pool}.workers or a lower max_tokens_per_pass"
        return Need("the model and one pass through it", 6.0 * shape.parameters + states, pool, advice, True)

    def workers_of_node(self, pool: Pool) -> int:
        """Workers of a pool on the machine that has most of them."""
        return -(-self.workers(pool) // self.nodes)

    def threads(self, pool: Pool) -> int:
        """Threads of one worker."""
        if pool == "train":
            return self.cluster.train.threads or max(1, self.cores // self.workers_of_node("train"))
        return {"map": self.cluster.map, "score": self.cluster.scoring_pool(), "java": self.cluster.java}.get(
            pool, self.cluster.map
        ).threads


def site(cluster: Cluster, store: Path) -> Site:
    """The machines of a profile: those that its `hardware` states, those of the cluster that it joins, or this one."""
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
    """The smallest machine of a cluster that was joined stands for all."""
    nodes = [node["Resources"] for node in ray_session(cluster).nodes() if node["Alive"]]
    nodes = [node for node in nodes if node.get("CPU")] or nodes
    gpus = min(int(node.get("GPU", 0)) for node in nodes)
    memory = min(float(node.get("memory", 0)) + float(node.get("object_store_memory", 0)) for node in nodes)
    most = min(int(node.get("CPU", 1)) for node in nodes)
    return Site(cluster, len(nodes), most, memory, free(store), gpus, _gpus()[1] or 80 * GB)


def _gpus() -> tuple[int, float]:
    """How many GPUs this machine has, and the memory of one."""
    if not Path("/proc/driver/nvidia").exists():  # torch would have to be imported to learn that there are none
        return 0, 0.0
    import torch

    count = torch.cuda.device_count()
    return count, float(torch.cuda.get_device_properties(0).total_memory) if count else 0.0


def free(store: Path) -> float:
    """Bytes that are free where a store lies or will lie; infinite for one on S3, whose cache holds parts."""
    if s3.is_cached(store):
        return float("inf")
    there = next(folder for folder in (store, *store.parents) if folder.exists())
    return float(shutil.disk_usage(there).free)
