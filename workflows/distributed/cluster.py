"""What a run runs on: the profile from `cluster/*.yaml`, and starting or joining Ray. Never changes a result."""

import os
import secrets
import socket
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from components.clock import at
from components.config import Config, UserError, parse, read_yaml
from workflows.room import Room

SETTINGS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S": "-1",  # a shard may take hours, as a large index does
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # What Ray's C++ side has to say to a user (a process died, say) comes as an exception too, and reads better there.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A task that Ray's memory monitor ended would be begun again for ever.
    "RAY_task_oom_retries": "3",
}
"""What Ray is told through the environment of this process, where that does not say otherwise."""
SPARE = 2
"""Logical CPUs that a Ray started here has beyond the cores and the training workers, for Ray Data's own tasks."""


class Pool(Config):
    """Workers that share out the shards of one step."""

    workers: int | None = None
    """How many at once; null for one a core (or one a GPU where the step uses one), and for one that trains."""
    threads: int = 1
    """Threads of each."""
    gpus: float = Field(1, gt=0, le=1)
    """What each has of a GPU, in `map` and `score`, where a step uses one: with .5 two share one."""


class Cluster(Config):
    """A profile: where a run runs."""

    mode: Literal["ray", "inline"] = "ray"
    """`inline` runs everything in one process (the JVM in one child): for unit tests and debuggers."""
    address: str | None = None
    """A running Ray cluster to join, `auto` for the one that this machine or job belongs to; null starts Ray on this
    machine alone."""
    patience: int = Field(300, ge=0)
    """Seconds that a cluster which was joined has to come to the size that `train` asks for: its nodes may still be
    starting. A training waits as long, and a minute at least, for workers' places that another driver has."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What models run on; `auto` takes the GPU where there is one."""
    train: Pool = Pool(workers=1, threads=0)
    """Ray Train workers; of these null is one. Threads 0 stands for all cores of the machine, divided among the workers
    on it."""
    map: Pool = Pool()
    """Ray Data's workers that encode, score and search."""
    score: Pool | None = None
    """Those that ask rankers and query rerankers; null for the same as `map`."""
    java: Pool = Pool()
    """Ray Data's workers with a JVM each, for BM25."""
    object_store_mb: int = 300
    """Shared memory of a Ray that is started here. Tables and vectors travel by file, so little is needed."""
    pass_tokens: int | None = Field(None, ge=8)
    """Tokens in one pass through a model (padding counted); moves memory and speed alone. Null for 65,536 on a GPU and
    4,096 on a CPU, where more falls out of its caches and less pays its own costs too often."""
    recompute: bool = False
    """Keep only vectors and scores of a training batch and run each pass again for its gradient (gradient
    caching): a batch of any size in the memory of one pass."""
    steps: int = Field(1, ge=1)
    """Steps under way at once, where none of them needs another. Each waits for the processors that its workers want;
    so give `map`, `java` and `train` parts of what there is, or they only take turns."""
    trials: int | None = Field(None, ge=1)
    """Trials that `tune` runs at once, which share all this; null for as many as there is room for: as often as there
    are the GPUs (or CPUs) of `train`, and on one machine without GPUs 4 GB of memory."""
    track: list[Literal["tensorboard", "mlflow", "wandb"]] = ["tensorboard"]
    """Where losses and throughput go while a run runs; MLflow and Weights & Biases where they are installed."""
    retries: int = 3
    """How often a training run is begun again after a worker dies, before the step fails."""

    @model_validator(mode="after")
    def _shares_of_gpus_are_of_maps(self) -> Self:
        for name, pool in {"train": self.train, "java": self.java}.items():
            if pool.gpus != 1:
                raise ValueError(
                    f"{name}: gpus: {pool.gpus:g}: only workers of map and score share a GPU; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _one_process_takes_one_step(self) -> Self:
        if self.mode == "inline" and self.steps > 1:
            raise ValueError(f"steps: {self.steps} at once are asked for; accepted with mode: inline: 1")
        return self

    def cuda(self) -> bool:
        """Whether models run on GPUs of what this runs on; UserError where they are asked for and there are none."""
        if self.device == "cpu":
            return False
        if self.mode == "ray":
            found = ray_session(self).cluster_resources().get("GPU", 0) > 0
        else:
            import torch  # heavy: only where a step really runs

            found = torch.cuda.is_available()
        if self.device == "cuda" and not found:
            raise UserError("cluster: device: cuda is asked for, and there is no GPU; accepted: auto, cpu")
        return found

    def check(self) -> None:
        """UserError where what a step asks for is not there, so that it would fail or wait for ever."""
        if self.mode == "inline":
            if self.device == "cuda":
                self.cuda()
            return
        maps = {"map": self.map, "score": self.scoring()}
        if self.cuda():
            kind, count, asked = "GPU", int(self.room().gpus), {**maps, "train": self.train}
        elif self.address:
            kind, count, asked = "CPU", int(self.room().cpus), {"train": self.train}
        else:  # on this machine alone each training worker has a logical CPU of its own
            kind, count, asked = "CPU", cores(), {}
        for key, pool in asked.items():
            workers, most = pool.workers or 1, int(count / pool.gpus)
            if workers > most:
                each = f"{pool.gpus:g} of a {kind}" if pool.gpus < 1 else f"a {kind}"
                raise UserError(
                    f"cluster: {key}.workers: {workers} workers with {each} each are asked for, and there are {count} "
                    f"{kind}s; accepted: 1 to {most}"
                )
        most = self.machine()
        for key, pool in {**maps, "java": self.java}.items():
            if pool.threads > most:
                raise UserError(
                    f"cluster: {key}.threads: {pool.threads} for each worker are asked for, and no machine has "
                    f"more than {most} cores; accepted: 1 to {most}"
                )

    def scoring(self) -> Pool:
        """The workers that ask rankers."""
        return self.score or self.map

    def tokens_at_once(self, *, cuda: bool) -> int:
        """Tokens in one pass through a model."""
        return self.pass_tokens or (65_536 if cuda else 4_096)

    def train_threads(self) -> int:
        """Threads of one training worker."""
        return self.train.threads or max(1, cores() // (self.train.workers or 1))

    def machine(self) -> int:
        """Cores of one machine: of this one, or of the largest of a cluster that was joined."""
        if self.mode == "inline" or not self.address:
            return cores()
        return max(1, *(int(node["Resources"].get("CPU", 0)) for node in ray_session(self).nodes() if node["Alive"]))

    def reserved(self) -> int:
        """Logical CPUs of a Ray that is started here that are not for the map over shards."""
        return 0 if self.address else SPARE + self.steps * (self.train.workers or 1)

    def room(self) -> Room:
        """Processors of all machines."""
        found = ray_session(self).cluster_resources()
        return Room(found.get("CPU", 0) if self.address else cores(), found.get("GPU", 0))

    def workers(self, pool: Pool, shards: int, *, gpu: bool = False) -> int:
        """How many workers of a pool the given number of shards keeps busy."""
        most = pool.workers
        if most is None:
            resources = ray_session(self).cluster_resources()
            most = int(resources.get("GPU", 0) / pool.gpus) if gpu else int(resources["CPU"]) - self.reserved()
        return max(1, min(most, shards))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def read(path: Path) -> Cluster:
    """The profile in a YAML file."""
    return parse(Cluster, read_yaml(path), where=str(path))


def tell_ray() -> None:
    """Set Ray's settings in this process's environment, which its libraries read when they are first imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def ray_session(cluster: Cluster) -> Any:
    """The `ray` module, joined to the profile's cluster; the first call starts or joins it."""
    tell_ray()
    if not cluster.address:
        _ask_for_tokens()
    import logging

    with at("start"):
        import ray

        if not ray.is_initialized():
            logging.getLogger("ray").setLevel(logging.ERROR)
            _start(ray, cluster)
            if not cluster.address:  # a cluster's nodes may still be coming
                cluster.check()
    return ray


def _start(ray: Any, cluster: Cluster) -> None:
    """Join the profile's cluster, or start Ray on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address:
        try:
            page = ray.init(address=cluster.address, **quiet).dashboard_url
        except ConnectionError as error:
            raise UserError(
                f"cluster: address: {cluster.address}: no Ray answers there ({str(error).splitlines()[0]}); start one "
                "(`ray start --head`), name another, or leave the address out to start Ray here"
            ) from None
        if page:
            print(f"Ray's dashboard: http://{page}", file=sys.stderr, flush=True)
        return
    _own_token()
    ray.init(
        address="local",  # never a stray cluster that happens to run on this host
        include_dashboard=False,
        # Logical CPUs only: Ray Data hangs in silence when workers leave none free for its own tasks.
        num_cpus=cores() + cluster.reserved(),
        object_store_memory=cluster.object_store_mb * 2**20,
        **quiet,
    )


def _ask_for_tokens() -> None:
    """Have a Ray of our own refuse who does not show its token, as its ports are open to the network."""
    if "ray" not in sys.modules:  # afterwards it would not hear of it, and what it does by default is the same
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _own_token() -> None:
    """Make the token of this user's Ray readable for this user alone: Ray would make it a file as any other."""
    path = Path.home() / ".ray" / "auth_token"
    elsewhere = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if path.exists() or elsewhere or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    with suppress(OSError):  # a home that cannot be written to is for Ray to speak about
        path.parent.mkdir(exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        temporary.replace(path)


def node_name() -> str:
    """What this process of Ray's calls the node that it is on: a host may have several."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def stop_ray() -> None:
    """Leave Ray if this process joined it."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
