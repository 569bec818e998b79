"""The cluster profile (`cluster/*.yaml`): the machines that a user wants a run to use. It never changes a result."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, UserError, parse
from sparring.components.yaml_files import read_yaml
from sparring.workflows.program import located


class Pool(Config):
    """Workers that share the shards of one step."""

    workers: int | None = Field(None, ge=1)
    """Number of workers at once. Null starts one per core, or one per GPU in steps that use GPUs. For `train`, null
    uses as many GPUs as make the training faster, which is measured before its first update, and 1 worker on CPUs."""
    threads: int = Field(1, ge=1)
    """Number of threads per worker."""
    gpus: float = Field(1, gt=0, le=1)
    """Share of a GPU that each worker gets, in steps that use GPUs. With 0.5 two workers share a GPU. For `train`, a
    share below 1 needs `workers: 1`. Then several trainings share a GPU: those of `parallel_steps`, or of a tuning's
    trials."""


class TrainPool(Pool):
    """Ray Train's workers and their use of memory. None of these keys changes a result."""

    threads: int = Field(1, ge=0)
    """Number of threads per worker. 0 divides the machine's cores among the workers."""
    shard: bool = False
    """Shard the model over the workers (FSDP2), for models larger than one GPU. Each worker holds a part of every
    layer, of its gradient and of its optimizer state, and gathers a layer when it is used. Parts outside the layers,
    such as token embeddings, are whole on each worker."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of each layer in a pass, and compute the layer again for its gradient. Training takes a
    third longer, and memory hardly grows with the number of layers."""
    compile: Literal["no", "auto"] = "no"
    """`auto` compiles the layers if models run on GPUs. That takes a minute at the start of each training."""


class Hardware(Config):
    """Hardware of a cluster that cannot be measured from here, for `plan --estimate`. The numbers are from data sheets,
    with assumptions about the share that work reaches."""

    nodes: int = Field(1, ge=1)
    """Number of machines, all alike."""
    cores: int = Field(ge=1)
    """CPU cores per machine."""
    memory_gb: float = Field(gt=0)
    """Memory per machine, in GB."""
    disk_gb: float = Field(gt=0)
    """Disk space at the store's place, in GB."""
    gpus: int = Field(0, ge=0)
    """GPUs per machine."""
    gpu_memory_gb: float = Field(80, gt=0)
    """Memory per GPU, in GB."""
    gpu_teraflops: float = Field(312, gt=0)
    """Peak rate of a GPU in bf16 without sparsity, in TFLOPS. 312 is an A100's."""
    share_of_peak: float = Field(0.3, gt=0, le=1)
    """Share of the peak rate that training, encoding and scoring reach."""
    update_seconds: float = Field(0.1, ge=0)
    """Seconds that each update of a training takes in addition to its arithmetic: starting GPU kernels, summing
    gradients over all GPUs, and the optimizer."""
    core_gigaflops: float = Field(100, gt=0)
    """Rate that a core reaches in a model's matrix products, in GFLOPS."""


class Cluster(Config):
    """The cluster profile: the machines and processors that a run uses."""

    mode: Literal["ray", "inline"] = "ray"
    """`ray` runs steps on Ray. `inline` runs everything in one process, with the JVM in one child process, for unit
    tests and debuggers."""
    address: str | None = None
    """Address of a running Ray cluster to join. `auto` is the cluster that this machine or job belongs to. Null starts
    Ray on this machine alone."""
    wait_seconds: int = Field(300, ge=0)
    """Seconds to wait for processors of a cluster that was joined. When a run starts, it waits for the processors that
    `train` asks for, if KubeRay or Ray's launcher may still start nodes. A step waits for processors whose node has
    died, and then fails. `submit` waits for a head node that is still starting. A step waits at least a minute for
    processors that other work uses."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that models run on. `auto` uses the GPUs if there are any when the run starts."""
    train: TrainPool = TrainPool(workers=1, threads=0)
    """Ray Train's workers. `threads: 0` divides the machine's cores among them."""
    map: Pool = Pool()
    """Workers that encode, search, and run other models over many rows."""
    score: Pool | None = None
    """Workers that run rankers and query rerankers. Null uses the workers of `map`."""
    java: Pool = Pool()
    """Workers for BM25. Each has a JVM."""
    object_store_mb: int = Field(300, ge=75)
    """Shared memory of a Ray that starts on this machine, in MB. Tables and vectors travel as files and need none."""
    max_tokens_per_pass: int | None = Field(None, ge=8)
    """Maximum number of tokens in one pass through a model, padding included. It changes only memory and speed. Null is
    65,536 on a GPU and 4,096 on a CPU. More tokens would not stay in a CPU's caches, and with fewer the fixed cost of a
    pass comes too often."""
    recompute: bool = False
    """Cache gradients: keep only the vectors and scores of a training batch, and run each pass again for its gradient.
    A batch of any size then needs the memory of one pass."""
    parallel_steps: int = Field(1, ge=1)
    """Number of independent steps that run at once. A step waits until all processors for its workers are free. So give
    `map`, `java` and `train` only parts of the machine; otherwise the steps run one after another."""
    trials: int | None = Field(None, ge=1)
    """Number of trials that `tune` runs at once. They share everything in this profile. Null is as many as the GPUs (or
    CPUs) allow when each trial has those of `train`. On one machine without GPUs each trial also needs 4 GB of
    memory."""
    track: list[Literal["tensorboard", "mlflow", "wandb"]] = ["tensorboard"]
    """Programs that log losses and throughput during a run. MLflow and Weights & Biases must be installed."""
    price_per_hour: float | None = Field(None, ge=0)
    """Price of all machines together per hour, in any currency. `plan --estimate` then shows money too."""
    hardware: Hardware | None = None
    """Hardware for an estimate of other machines than those here. Null measures these."""
    save_seconds: float = Field(60, ge=0)
    """Seconds between the checkpoints of a training. If everything dies, at most this much of the training is lost. 0
    writes a checkpoint after each update."""
    retries: int = Field(3, ge=0)
    """Number of times that a training starts again after a worker has died, before the step fails. If a node of a
    cluster that was joined is lost, that costs none: the training goes on with fewer workers until there is another."""

    @field_validator("address")
    @classmethod
    def _address_holds_no_secret(cls, address: str | None) -> str | None:
        if "@" in (address or ""):
            raise ValueError(
                "it has more than a host and a port, which would be written to records; accepted: HOST:PORT, auto"
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
        """Return the workers that run rankers and query rerankers."""
        return self.score or self.map

    def batch_tokens(self, *, cuda: bool) -> int:
        """Return the maximum number of tokens in one pass through a model."""
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
