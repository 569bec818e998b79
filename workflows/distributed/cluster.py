"""The cluster profile (`cluster/*.yaml`): what the user wants a run to run on. It never changes a result."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, UserError, parse
from sparring.components.yaml_files import read_yaml
from sparring.workflows.program import located


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
    """Seconds to wait for processors of a cluster that was joined. A run waits when it starts, for those that `train`
    asks for, if KubeRay or Ray's launcher may still start nodes. A step waits for processors whose node has died since,
    and then fails. `submit` waits for a head that is still starting. A training waits for processors that another
    driver uses, but at least a minute."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What models run on. `auto` is the GPUs, if there are any when the run starts."""
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

    def scoring_pool(self) -> Pool:
        """The workers that run rankers and query rerankers."""
        return self.score or self.map

    def batch_tokens(self, *, cuda: bool) -> int:
        """Most tokens in one pass through a model."""
        return self.max_tokens_per_pass or (65_536 if cuda else 4_096)


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
