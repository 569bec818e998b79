"""Train a model on Ray Train: any objective, on any table it takes."""

from pathlib import Path
from typing import Any

from components import draws
from components.clock import at
from components.config import Config, UserError
from components.processor import settle
from components.train_config import TrainConfig
from workflows import memory, mirror
from workflows.cluster import Cluster
from workflows.progress import Progress
from workflows.worker_group import train_together

SAVE_SECONDS = 60.0
"""How much training is lost at most when everything dies."""


def train(
    out: Path, cluster: Cluster, *, objective: str, rows: Path, dev: Path | None, data: Path, tokens: Path,
    start: Path, seed: list[Any], config: TrainConfig, **own: Path | Config,
) -> dict[str, Any]:  # fmt: skip
    """Train from `start`'s model on the groups in `rows`; the model is written to `out/model`.

    `own` is what the objective takes beyond what all of them do, by its names: artifacts, such as `vectors`, and
    configs.

    The seed is a key, such as (seed, player, round): no two trainings see the same orders and dropout. `out/state`
    keeps the optimizer for a training that carries on from this one; `out/metrics.jsonl` the losses.
    """
    workers = cluster.train.workers or 1
    if config.batch % (config.accumulate * workers):
        raise UserError(
            f"batch: {config.batch} groups cannot be shared evenly among {workers} workers in {config.accumulate} "
            "parts; choose a multiple"
        )
    cuda = cluster.cuda()
    task = {
        "out": str(out), "objective": objective, "rows": str(rows / "groups.parquet"),
        "dev": str(dev / "groups.parquet") if dev is not None else None, "data": str(data), "tokens": str(tokens),
        "start": str(start), "seed": draws.number(*seed), "config": config.model_dump(mode="json"),
        "cluster": cluster.model_dump(mode="json"), "cuda": cuda, "own": own,
        "save_seconds": SAVE_SECONDS,
    }  # fmt: skip
    with memory.told(memory.of_training(cluster, cuda=cuda)):
        if cluster.mode == "inline":
            return work(task)
        summary = dict(train_together(work, task, cluster, gpu=cuda, storage=out))
    mirror.bring(out, exactly=True)
    return summary


@at("start")
def work(task: dict[str, Any]) -> dict[str, Any]:
    """What each worker does."""
    import torch

    from components.gather import rank
    from components.training import objective_named, train

    task = mirror.here(task)
    out = Path(task["out"])
    mirror.bring(out, exactly=True)  # on every node the same checkpoint: the last that was sent
    cluster = Cluster.model_validate(task["cluster"])
    settle(cluster.train_threads())
    config = TrainConfig.model_validate(task["config"])
    model = Path(task["start"]) / "model"

    def build(rows: str) -> Any:
        return objective_named(task["objective"])(
            model, rows=Path(rows), data=Path(task["data"]), tokens=Path(task["tokens"]), losses=config.losses,
            piece=cluster.tokens_at_once(cuda=task["cuda"]), recompute=cluster.recompute, **task["own"],
        )  # fmt: skip

    progress = Progress(out, config.steps, "steps") if rank() == 0 else None

    def on_step(step: int, note: str) -> None:
        if progress is not None:
            progress.to(step, note)

    def on_save() -> None:
        mirror.send(out / "metrics.jsonl")
        mirror.sync(out / "checkpoints", delete=True)

    summary = train(
        build(task["rows"]), config, out=out, seed=task["seed"],
        start=Path(task["start"]), device=torch.device("cuda" if task["cuda"] else "cpu"),
        dev=build(task["dev"]) if task["dev"] else None, save_seconds=task["save_seconds"], on_step=on_step,
        on_save=on_save,
    )  # fmt: skip
    if rank() == 0:
        mirror.sync(out, delete=True)
    return summary
