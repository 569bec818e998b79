"""Train a model on Ray Train: any objective, on any table it takes."""

import os
from pathlib import Path
from typing import Any

from components import draws
from components.config import UserError
from components.processor import settle
from components.train_config import TrainConfig
from workflows.cluster import Cluster, ray_session
from workflows.progress import Progress

SAVE_SECONDS = 60.0
"""How much training is lost at most when everything dies."""

# Ray Train calls `work` in a thread. The C library gives a thread memory of its own, in heaps of 64 MB that it unmaps
# as soon as one is empty: with tensors of about that size half the time of a step went into the kernel.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}


def train(
    out: Path, cluster: Cluster, *, objective: str, rows: Path, dev: Path | None, data: Path, tokens: Path,
    start: Path, seed: list[Any], config: TrainConfig,
) -> dict[str, Any]:  # fmt: skip
    """Train from `start`'s model on the groups in `rows`; the model is written to `out/model`.

    The seed is a key, such as (seed, player, round): no two trainings see the same orders and dropout. `out/state`
    keeps the optimizer for a training that carries on from this one; `out/metrics.jsonl` the losses.
    """
    workers = cluster.train.workers or 1
    if config.batch % (config.accumulate * workers):
        raise UserError(
            f"batch: {config.batch} groups cannot be shared evenly among {workers} workers in {config.accumulate} "
            "parts; choose a multiple"
        )
    task = {
        "out": str(out), "objective": objective, "rows": str(rows / "groups.parquet"),
        "dev": str(dev / "groups.parquet") if dev is not None else None, "data": str(data), "tokens": str(tokens),
        "start": str(start), "seed": draws.number(*seed), "config": config.model_dump(mode="json"),
        "cluster": cluster.model_dump(mode="json"), "cuda": cluster.cuda(),
        "save_seconds": SAVE_SECONDS,
    }  # fmt: skip
    return work(task) if cluster.mode == "inline" else _on_ray(task, cluster, workers)


def work(task: dict[str, Any]) -> dict[str, Any]:
    """What each worker does."""
    import torch

    from components.gather import rank
    from components.training import objective_named, train

    cluster = Cluster.model_validate(task["cluster"])
    settle(cluster.train_threads())
    config = TrainConfig.model_validate(task["config"])
    model = Path(task["start"]) / "model"

    def build(rows: str) -> Any:
        return objective_named(task["objective"])(
            model, rows=Path(rows), data=Path(task["data"]), tokens=Path(task["tokens"]), losses=config.losses,
            piece=cluster.tokens_at_once(cuda=task["cuda"], training=True), recompute=cluster.recompute,
        )  # fmt: skip

    out = Path(task["out"])
    progress = Progress(out, config.steps, "steps") if rank() == 0 else None

    def on_step(step: int, note: str) -> None:
        if progress is not None:
            progress.to(step, note)

    return train(
        build(task["rows"]), config, out=out, seed=task["seed"],
        start=Path(task["start"]), device=torch.device("cuda" if task["cuda"] else "cpu"),
        dev=build(task["dev"]) if task["dev"] else None,
        save_seconds=task["save_seconds"], on_step=on_step,
    )  # fmt: skip


def _on_ray(task: dict[str, Any], cluster: Cluster, workers: int) -> dict[str, Any]:
    ray_session(cluster)
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    out = Path(task["out"])
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    trainer = TorchTrainer(
        work,
        train_loop_config=task,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=task["cuda"], resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="ray",
            storage_path=str(out),
            failure_config=FailureConfig(max_failures=cluster.retries),
            logging_config=LoggingConfig(log_level="WARNING"),
            worker_runtime_env={"env_vars": ONE_ARENA},
        ),
    )
    try:
        return dict(trainer.fit().return_value)
    except TrainingFailedError as error:
        raise _reason(error) from error


def _reason(error: Any) -> Exception:
    """What a worker met, in its own words; those of its neighbours are about having lost it."""
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for mistake in failures.values():
        if isinstance(mistake, UserError):
            return mistake
    for rank, failure in sorted(failures.items()):
        if "process has died" not in str(failure):
            return RuntimeError(f"worker {rank}: {type(failure).__name__}: {' '.join(str(failure).split())}")
    said = str(error)
    if "process has died" in said:
        return RuntimeError("a worker's process died, more often than `retries` allows (killed, or out of memory)")
    return RuntimeError(" ".join(said.split()))
