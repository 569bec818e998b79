"""What a run runs on: the cluster profile (`cluster/*.yaml`). Never changes a result."""

import importlib.util
import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, UserError, parse
from sparring.components.yaml_files import read_yaml
from sparring.workflows.distributed import limits
from sparring.workflows.distributed.resources import Resources
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.program import located

SPARE_CPUS = 2
"""Logical CPUs of a Ray that starts on this machine, beside those for cores and training workers: for Ray Data's own
tasks."""


TRACKERS = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
"""The packages of `track`."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


class Pool(Config):
    """The workers among which the shards of one step are divided."""

    workers: int | None = Field(None, ge=1)
    """How many at once. Null is one per core, or one per GPU in steps that use GPUs. Of `train` null is as many GPUs as
    divide the batch evenly, and 1 on CPUs."""
    threads: int = Field(1, ge=1)
    """Threads of each worker."""
    gpus: float = Field(1, gt=0, le=1)
    """In steps that use GPUs, the part of a GPU that each worker has: with 0.5 two share one. Of `train` a part only
    with `workers: 1`: then so many trainings share a GPU, those of `parallel_steps` or of a tuning's trials."""


class TrainPool(Pool):
    """Ray Train's workers, and what they hold. None of it changes a result."""

    threads: int = Field(1, ge=0)
    """Threads of each worker; 0 for as many as the machine's cores are enough for."""
    shard: bool = False
    """For models larger than one GPU: each worker holds a part of every layer, of its gradient and of its moments, and
    gathers a layer when it is used (FSDP2). What is outside of the layers, such as token embeddings, is whole on
    each."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of each layer of a pass, and run the layer again for its gradient: a third more time, and
    memory that hardly grows with the number of layers."""
    compile: Literal["no", "auto"] = "no"
    """`auto` compiles the layers where models run on GPUs, which takes a minute at the start of each training."""


class Hardware(Config):
    """What the machines of a cluster are that is not here, for `plan --estimate`: its data sheet, and how much of it
    work reaches, which is an assumption."""

    nodes: int = Field(1, ge=1)
    """Machines, all alike."""
    cores: int = Field(ge=1)
    """Of each machine."""
    memory_gb: float = Field(gt=0)
    """Of each machine."""
    disk_gb: float = Field(gt=0)
    """Where the store lies."""
    gpus: int = Field(0, ge=0)
    """Of each machine."""
    gpu_memory_gb: float = Field(80, gt=0)
    """Of each GPU."""
    gpu_teraflops: float = Field(312, gt=0)
    """Highest rate of a GPU in bf16, without sparsity; 312 is an A100's."""
    share_of_peak: float = Field(0.3, gt=0, le=1)
    """How much of the highest rate training, encoding and scoring reach."""
    update_seconds: float = Field(0.1, ge=0)
    """Of each update of a training beside its arithmetic: starting the GPU's kernels, adding gradients up over all
    GPUs, the optimizer."""
    core_gigaflops: float = Field(100, gt=0)
    """Rate of a core in a model's matrix products, as it is reached."""


class Cluster(Config):
    """The cluster profile: what a run runs on."""

    mode: Literal["ray", "inline"] = "ray"
    """`inline` runs everything in one process (the JVM in one child process), for unit tests and debuggers."""
    address: str | None = None
    """The address of a running Ray cluster to join; `auto` is the one that this machine or job belongs to. Null starts
    Ray on this machine alone."""
    wait_seconds: int = Field(300, ge=0)
    """On a cluster that was joined: seconds to wait until it has the processors that `train` asks for, where KubeRay or
    Ray's launcher may still start nodes; `submit` waits as long for a head that is still starting. A training waits as
    long, but at least a minute, for processors that another driver uses."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What models run on; `auto` is the GPUs where there are any."""
    train: TrainPool = TrainPool(workers=1, threads=0)
    """Ray Train's workers. Threads 0 divides the cores of the machine among the workers."""
    map: Pool = Pool()
    """Ray Data's workers that encode, search, and run other models over many rows."""
    score: Pool | None = None
    """Ray Data's workers that run rankers and query rerankers; null is the same as `map`."""
    java: Pool = Pool()
    """Ray Data's workers for BM25; each has a JVM."""
    object_store_mb: int = Field(300, ge=75)
    """MB of shared memory of a Ray that starts on this machine. Tables and vectors travel as files and need none."""
    max_tokens_per_pass: int | None = Field(None, ge=8)
    """Most tokens in one pass through a model, padding included; changes only memory and speed. Null is 65,536 on a GPU
    and 4,096 on a CPU: more would not stay in a CPU's caches, less would pay the fixed cost of a pass too often."""
    recompute: bool = False
    """Gradient caching: keep only the vectors and scores of a training batch, and run each pass again for its gradient.
    A batch of any size then needs the memory of one pass."""
    parallel_steps: int = Field(1, ge=1)
    """How many steps that do not need each other run at once. A step waits until all processors for its workers are
    free. So give `map`, `java` and `train` only parts of the machine; otherwise the steps run one after another."""
    trials: int | None = Field(None, ge=1)
    """How many trials `tune` runs at once; they share everything in this profile. Null is as many as the GPUs (or CPUs)
    are enough for when each trial has those of `train`; on one machine without GPUs each also needs 4 GB of memory."""
    track: list[Literal["tensorboard", "mlflow", "wandb"]] = ["tensorboard"]
    """Where losses and throughput are logged during a run; MLflow and Weights & Biases must be installed."""
    price_per_hour: float | None = Field(None, ge=0)
    """What all machines together cost in an hour, in any currency: `plan --estimate` then says money too."""
    hardware: Hardware | None = None
    """What the machines are, for an estimate where they are not here. Null measures those that are."""
    save_seconds: float = Field(60, ge=0)
    """Seconds between the checkpoints of a training: how much of it is lost at most when everything dies. 0 writes one
    after each update."""
    retries: int = Field(3, ge=0)
    """How often a training starts again after a worker has died, before the step fails."""

    @field_validator("address")
    @classmethod
    def _address_holds_no_secret(cls, address: str | None) -> str | None:
        if "@" in (address or ""):
            raise ValueError(
                "has more than a host and a port in it, and would end in records; accepted: HOST:PORT, auto"
            )
        return address

    @model_validator(mode="after")
    def _who_shares_a_gpu(self) -> Self:
        if self.java.gpus != 1:
            raise ValueError(f"java: gpus: got {self.java.gpus:g}; its workers use no GPU; accepted: 1")
        if self.train.gpus != 1 and self.train.workers != 1:
            raise ValueError(
                f"train: gpus: got {self.train.gpus:g} with workers: {self.train.workers or 'null'}; the workers of "
                "one training cannot share a GPU; accepted: 1, or a part with workers: 1"
            )
        return self

    @model_validator(mode="after")
    def _inline_runs_one_step(self) -> Self:
        if self.mode != "inline":
            return self
        if self.parallel_steps > 1:
            raise ValueError(f"parallel_steps: got {self.parallel_steps}; accepted with mode: inline: 1")
        if (self.train.workers or 1) > 1:
            raise ValueError(f"train.workers: got {self.train.workers}; accepted with mode: inline: 1, or null")
        if self.train.shard:
            raise ValueError("train.shard: got true; accepted with mode: inline: false, as there is one worker")
        if self.address is not None:
            raise ValueError(f"address: got {self.address!r}; accepted with mode: inline: null")
        return self

    def cuda(self) -> bool:
        """Whether models run on GPUs; UserError where the profile asks for GPUs and there are none."""
        if self.device == "cpu":
            return False
        if self.mode == "ray":
            available = ray_session(self).cluster_resources().get("GPU", 0) > 0
        else:
            import torch  # slow to import: only where a step really runs

            available = torch.cuda.is_available()
        self._check_device(available)
        return available

    def _check_device(self, available: bool) -> None:
        if self.device == "cuda" and not available:
            where = "in the Ray cluster" if self.mode == "ray" else "on this machine"
            raise UserError(f"cluster: device: cuda is asked for, and there is no GPU {where}; accepted: auto, cpu")

    def check(self) -> None:
        """UserError where a step would ask Ray for more than there is, and would fail or wait for ever."""
        if self.mode == "inline":
            if self.device == "cuda":
                self.cuda()
            return
        here = Resources(cores()) if self.device == "cpu" and not self.address else self.resources()  # asks no Ray
        self.check_asked(here, self.machine_cores())

    def check_track(self) -> None:
        """UserError for one of `track` that is not installed."""
        for kind in self.track:
            if not is_installed(TRACKERS[kind]):
                raise UserError(
                    f"cluster: track: {kind} is not installed; accepted: leave it out, or `pip install {kind}` first"
                )

    def check_asked(self, there: Resources, most_cores: int) -> None:
        """UserError where the pools ask for more than these processors, or threads than the largest machine's cores."""
        self._check_device(there.gpus > 0)
        maps = {"map": self.map, "score": self.scoring_pool()}
        if there.gpus and self.device != "cpu":
            kind, count, pools = "GPU", int(there.gpus), {**maps, "train": self.train}
        elif self.address:
            kind, count, pools = "CPU", int(there.cpus), {"train": self.train}
        else:  # a Ray that starts on this machine has a logical CPU for each training worker
            kind, count, pools = "CPU", cores(), {}
        for key, pool in pools.items():
            workers, most = pool.workers or 1, int(count / pool.gpus)
            if workers > most:
                each = f"{pool.gpus:g} of a {kind}" if pool.gpus < 1 else f"a {kind}"
                raise UserError(
                    f"cluster: {key}.workers: {workers} workers with {each} each are asked for, and there are {count} "
                    f"{kind}s; accepted: 1 to {most}"
                )
        for key, pool in {**maps, "java": self.java}.items():
            if pool.threads > most_cores:
                raise UserError(
                    f"cluster: {key}.threads: {pool.threads} for each worker are asked for, and no machine has "
                    f"more than {most_cores} cores; accepted: 1 to {most_cores}"
                )

    def scoring_pool(self) -> Pool:
        """The workers that run rankers and query rerankers."""
        return self.score or self.map

    def batch_tokens(self, *, cuda: bool) -> int:
        """Most tokens in one pass through a model."""
        return self.max_tokens_per_pass or (65_536 if cuda else 4_096)

    def for_batch(self, rows: int) -> Self:
        """The profile with a number of training workers, where it leaves that open: as many GPUs as divide the rows
        evenly, or 1 on CPUs."""
        if self.train.workers is not None:
            return self
        most = self.workers(self.train, rows, gpu=True) if self.mode == "ray" and self.cuda() else 1
        workers = next(count for count in range(most, 0, -1) if rows % count == 0)
        return self.model_copy(update={"train": self.train.model_copy(update={"workers": workers})})

    def train_threads(self) -> int:
        """Threads of one training worker."""
        return self.train.threads or max(1, cores() // (self.train.workers or 1))

    def machine_cores(self) -> int:
        """Cores of this machine, or of the largest one of a cluster that was joined."""
        if self.mode == "inline" or not self.address:
            return cores()
        return max(1, *(int(node["Resources"].get("CPU", 0)) for node in ray_session(self).nodes() if node["Alive"]))

    def reserved_cpus(self) -> int:
        """Logical CPUs that a Ray that starts on this machine does not use for the map over shards."""
        return 0 if self.address else SPARE_CPUS + self.parallel_steps * (self.train.workers or 1)

    def logical_cpus(self) -> int:
        """CPUs that a Ray which starts on this machine is told of."""
        return cores() + self.reserved_cpus()

    def resources(self) -> Resources:
        """The processors of all machines."""
        total = ray_session(self).cluster_resources()
        return Resources(total.get("CPU", 0) if self.address else cores(), total.get("GPU", 0))

    def workers(self, pool: Pool, shards: int, *, gpu: bool = False) -> int:
        """How many workers of a pool run at once: no more than there are shards."""
        most = pool.workers
        if most is None:
            total = ray_session(self).cluster_resources()
            most = int(total.get("GPU", 0) / pool.gpus) if gpu else int(total["CPU"]) - self.reserved_cpus()
        return max(1, min(most, shards))


def cores() -> int:
    """Count the cores that this process may use: those that it may run on, within its container's CPU quota."""
    return max(1, int(min(len(os.sched_getaffinity(0)), limits.cpus())))


def read_cluster(path: Path) -> Cluster:
    """Read a cluster profile, the user's or one of the repository's."""
    path = located(path)
    tree = read_yaml(path)
    if "recipe" in tree:
        raise UserError(f"{path}: an experiment; accepted: a cluster profile, such as cluster/laptop.yaml")
    for place in ("store", "runs"):
        if place in tree:
            raise UserError(f"{path}: {place}: no key of a profile; accepted: `--{place} FOLDER` before the command")
    return parse(Cluster, tree, where=str(path))
