"""Train a model on Ray Train, with any objective, on any table that the objective takes."""

import shutil
from pathlib import Path
from typing import Any

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError
from sparring.components.rng import keyed_int
from sparring.components.timing import timed
from sparring.components.training.config import LOG, TrainConfig
from sparring.components.training.terms import declared
from sparring.workflows.distributed import oom
from sparring.workflows.distributed.cluster import TrainPool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.worker_group import train_together
from sparring.workflows.store import attempts, cache, transfer
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress


def _undivided(config: TrainConfig, workers: int) -> str:
    """Describe why a batch cannot be divided into parts and shared by workers. Return "" if it can."""
    rows, rest = divmod(config.batch, config.accumulate)
    if rest:
        return (
            f"batch: {config.batch} rows cannot be divided into {config.accumulate} equal parts (accumulate). Use a "
            f"multiple of {config.accumulate}."
        )
    if rows < workers:
        return (
            f"batch: {rows} rows at once (batch / accumulate) are too few for {workers} workers. Use at least "
            f"{workers * config.accumulate}, or set train.workers in the profile (--cluster) to null."
        )
    return ""


def _unsharded(objective: str, pool: TrainPool) -> str:
    """Describe why a training cannot be sharded. Return "" if it can, or if it is not to be."""
    if not pool.shard or (pool.workers or 1) == 1 or declared(objective, "shards") is not False:
        return ""
    reason = f"the objective {objective} divides a batch itself"
    return f"train.shard in the profile (--cluster): {reason}; accepted with it: false"


def _refuses(objective: str, config: TrainConfig, machine: Machine) -> None:
    """Refuse workers that cannot share a batch or a model."""
    pool = machine.for_batch(max(1, config.batch // config.accumulate)).cluster.train
    if wrong := _undivided(config, pool.workers or 1) or _unsharded(objective, pool):
        raise UserError(wrong)


@Description(
    part="training",
    modules=("objective",),
    models="training",
    carried=("state",),
    workers_read={"*": ("*",), "out": ("model/*", "state/*", "checkpoints/*")},
    shows=(LOG,),
    refuses=_refuses,
    carries={"start": lambda inputs: inputs["config"].carry == "all"},
)
def train(
    out: Path,
    machine: Machine,
    *,
    objective: str,
    rows: Path,
    dev: Path | None,
    data: Path,
    tokens: Path,
    start: Path,
    seed: list[Any],
    config: TrainConfig,
    **arguments: Path | Config,
) -> dict[str, Any]:
    """Train the model of `start` on the objective's table in `rows`. Write the model to `out/model`.

    `arguments` are the objective's further arguments, by name: artifacts, such as `vectors`, and configs.

    The seed is a key, such as (seed, model, round): no two trainings see the same orders and dropout. If trainings
    share a schedule, `out/state` keeps the optimizer for the next one. `out/metrics.jsonl` has the losses.
    """
    _refuses(objective, config, machine)
    chooses = machine.cluster.train.workers is None and not machine.cluster.train.shard
    machine = machine.for_batch(config.batch // config.accumulate)
    task = {
        "out": out,
        "objective": objective,
        "rows": rows,
        "dev": dev,
        "data": data,
        "tokens": tokens,
        "start": start,
        "seed": keyed_int(*seed),
        "config": config,
        "arguments": arguments,
        "machine": machine,
        "choose_workers": chooses,
    }
    with oom.advise(oom.training_advice(machine)):
        if machine.cluster.mode == "inline":
            summary = work(task)
        else:
            summary = dict(train_together(work, task, machine, storage=out))
            shutil.rmtree(out / "ray", ignore_errors=True)  # Ray Train marks what it may write to
    transfer.collect(out, exact=True)
    return summary


@timed("start")
def work(task: dict[str, Any]) -> dict[str, Any]:
    """Train in one worker."""
    with cache.holding():
        return _trained(**transfer.localize(task, {"data": ("documents.parquet",)}))


def _trained(
    *,
    out: Path,
    objective: str,
    rows: Path,
    dev: Path | None,
    data: Path,
    tokens: Path,
    start: Path,
    seed: int,
    config: TrainConfig,
    arguments: dict[str, Path | Config],
    machine: Machine,
    choose_workers: bool,
    restarts: int = 0,
) -> dict[str, Any]:
    """Train on this node's files. Return the summary."""
    import torch

    from sparring.components.compute.gather import rank
    from sparring.components.training.loop import Execution
    from sparring.components.training.loop import train as run_loop
    from sparring.components.training.objective import ObjectiveInputs, make_objective

    profile = machine.cluster
    transfer.download(out, exact=True)  # every node needs the same checkpoint, the last that was sent
    configure_process(machine.train_threads)
    inputs = ObjectiveInputs(
        model=start / "model",
        rows=rows,
        data=data,
        tokens=tokens,
        losses=config.losses,
        max_tokens=machine.batch_tokens,
        recompute=profile.recompute,
    )
    attempts.resume(out)
    instance = make_objective(objective, inputs, seed=seed, **arguments)
    progress = Progress(out, config.updates, "updates") if rank() == 0 else None

    def on_update(update: int, note: str) -> None:
        if progress is not None:
            times = "once" if restarts == 1 else f"{restarts} times"
            progress.set_done(update, f"{note}; workers died and started again {times}" if restarts else note)

    def on_save() -> None:
        attempts.keep(out)
        transfer.upload(out / LOG)
        transfer.sync(out / "checkpoints", delete=True)

    summary = run_loop(
        instance,
        config,
        out=out,
        seed=seed,
        start=start,
        device=torch.device("cuda" if machine.cuda else "cpu"),
        dev=instance.reading(dev) if dev is not None else None,
        save_seconds=profile.save_seconds,
        on_update=on_update,
        on_save=on_save,
        execution=Execution(
            shard=profile.train.shard,
            gradient_checkpointing=profile.train.gradient_checkpointing,
            compile=profile.train.compile == "auto",
            choose_workers=choose_workers,
        ),
    )
    if rank() == 0:
        transfer.sync(out, delete=True)
    return summary
