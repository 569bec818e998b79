"""The training loop, for one or many processes. It resumes after an interruption.

The rows, dropout and learning rate of an update depend only on the seed and the update's number. A checkpoint is
therefore the weights, the optimizer and a few numbers. A training that was killed and resumed ends with exactly the
same weights as an uninterrupted one.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparring.components.compute.chunking import in_step
from sparring.components.compute.fast_cpu import use_fast_cpu_ops
from sparring.components.compute.gather import among_first, of_first, rank, wait_for_workers, workers
from sparring.components.compute.gpu_kernels import compile_layers, use_gpu_attention
from sparring.components.config import UserError
from sparring.components.files import read_json, replacing, write_json
from sparring.components.models import adapters
from sparring.components.models.layers import use_gradient_checkpointing
from sparring.components.timing import timed
from sparring.components.training import checkpoints, master_weights, self_check, sharding
from sparring.components.training.adafactor import Adafactor
from sparring.components.training.config import LOG, TrainConfig
from sparring.components.training.efficiency import efficient_workers
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.gradients import add_gradients, products
from sparring.components.training.log import MetricsLog, Outcome
from sparring.components.training.objective import Objective
from sparring.components.training.prepared import Batches
from sparring.components.training.schedule import learning_rate, noam_peak, visits_of_update
from sparring.components.training.state import Best, TrainingState
from sparring.components.training.validation import LOSS, better, validate

STILL = (
    "The gradient was 0 in every logged update, so the model is unchanged. Groups of a single candidate, and losses "
    "with weight 0, teach nothing."
)


MOST_UNASKED = 100
"""Maximum number of updates after which the first worker is asked again whether a checkpoint is due."""


@dataclass(frozen=True)
class Execution:
    """Options of execution. They do not change the result."""

    shard: bool = False
    """Sharding: each worker holds a part of every layer (`components.training.sharding`)."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: a layer keeps only its inputs, and runs again in the backward pass."""
    compile: bool = False
    """Compilation of the layers on a GPU."""
    choose_workers: bool = False
    """Training on only as many of the workers as are worth while (`components.training.efficiency`)."""


def train(
    objective: Objective,
    config: TrainConfig,
    *,
    out: Path,
    seed: int,
    start: Path | None,
    device: torch.device,
    dev: Objective | None,
    save_seconds: float,
    on_update: Callable[[int, str], None],
    on_save: Callable[[], None] = lambda: None,
    execution: Execution = Execution(),
) -> dict[str, Any]:
    """Train to the last update, resuming from the state in `out`. Every worker must call this.

    Return a summary on the first worker. With an empty table the model stays unchanged. `dev` is the objective over the
    validation rows (`Objective.reading`). If None, there is no validation. The first worker calls `on_save` after each
    checkpoint.
    """
    finished = out / "state" / "state.json"
    if of_first(finished.exists()):  # killed between the last write of the training and the step's record
        return _finished(out) if rank() == 0 else {}
    checkpoint = checkpoints.newest(out / "checkpoints")
    adapters.share(objective, device, torch.float32)
    objective.to(device)
    updates = config.updates if objective.rows() else 0
    with ExitStack() as block:
        if execution.shard and workers() > 1:
            block.enter_context(in_step())
        check = checkpoint is None and updates > 0
        _prepare(objective, config, check=check, seed=seed, device=device, execution=execution)
        optimizer = _optimizer(objective, config)
        state, first = _resumed(objective, optimizer, config, checkpoint, start, device)
        if checkpoint is None:
            state.workers = workers()
            if execution.choose_workers and updates > 0 and workers() > 1:
                with timed("compute"):
                    state.workers = efficient_workers(objective, config, seed=seed, device=device)
        state.workers = min(state.workers, workers()) if execution.choose_workers else workers()
        if not block.enter_context(among_first(state.workers)):
            return {}
        log = MetricsLog(out / LOG, state, config)
        began, before = time.monotonic(), state.seconds
        on_update(state.update, "")
        look = config.validate_on_dev if dev is not None and updates > 0 else None

        def read() -> None:
            log.read(state)
            state.seconds = before + time.monotonic() - began

        def validated() -> None:
            assert dev is not None
            log.write(state.update, _validate(objective, dev, config, state, out, seed=seed, device=device))

        with (
            timed("compute"),
            GradientSums(objective) as sums,
            Batches(objective, config, seed=seed, device=device) as batches,
        ):
            saving = _Saving(save_seconds)
            if look and look.from_start and state.update == 0 and state.best is None:
                validated()
            while state.update < updates and not _patience_is_over(state, config):
                rate = learning_rate(config, first + state.update)
                log.add(
                    _update(objective, optimizer, config, state, batches, sums, seed=seed, rate=rate, device=device)
                )
                looks = look is not None and state.update % look.every == 0
                saves = saving.is_due(state.update) and state.update < updates
                if log.is_due(state) or looks or saves:
                    read()
                if log.is_due(state):
                    log.write_means(state, rate)
                if looks:
                    validated()
                if saves:
                    checkpoints.save(out / "checkpoints", objective, optimizer, state)
                    if rank() == 0:
                        on_save()
                    saving.done()
                on_update(state.update, "" if log.loss is None else f"loss {log.loss:.3f}")
            read()
        still = rank() == 0 and log.never_moved()
        return _finish(objective, optimizer, config, out, state, first, device, still=still)


class _Saving:
    """The times of checkpoints. Clocks differ between workers but all must save together: the first worker decides."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, 0
        self._began = self._saved = time.monotonic()
        self._updates = 0

    def is_due(self, update: int) -> bool:
        """Return True if a checkpoint is due after this update. Every worker gets the same answer.

        The first worker is not asked after every update, but again after half of the updates for which there is time.
        """
        self._updates += 1
        if update < self._next:
            return False
        now = time.monotonic()
        remaining = self._seconds - (now - self._saved)
        pause = max(1, int(remaining / 2 / ((now - self._began) / self._updates))) if remaining >= 0 else 0
        pause = of_first(min(pause, MOST_UNASKED))
        self._next = update + max(1, pause)
        return pause == 0

    def done(self) -> None:
        """Note that a checkpoint was written."""
        self._saved = time.monotonic()


def _prepare(
    objective: Objective, config: TrainConfig, *, check: bool, seed: int, device: torch.device, execution: Execution
) -> None:
    """Apply the device's fast operations, and the memory savings of the config and `execution`.

    With `check`, verify that gradients stay correct. The check is in fp32. It therefore runs before weights are rounded
    to bf16 and sharded as bf16, and before models get an attention that only supports bf16.
    """
    rounded = config.weights == "bf16"
    expected = None
    if objective.self_check and check:
        visits = visits_of_update(config, objective.rows(), seed=seed, update=0)
        with timed("compute"):
            expected = self_check.plain(objective, config, visits, device=device)
    if device.type == "cpu":
        use_fast_cpu_ops(objective)
    if device.type == "cuda":
        use_gpu_attention(objective, precision="fp32")
    if execution.gradient_checkpointing:
        use_gradient_checkpointing(objective)
    if execution.compile and device.type == "cuda":
        compile_layers(sharding.layers(objective))
    if execution.shard and not rounded:
        sharding.shard(objective, device)
    if expected is not None:
        with timed("compute"):
            self_check.compare(objective, expected, device=device)
    if device.type == "cuda":
        use_gpu_attention(objective, precision=products(config, device))
    if rounded:
        adapters.share(objective, device, torch.bfloat16)
        if execution.shard:
            sharding.shard(objective, device, gathered=torch.bfloat16)
        master_weights.keep(objective)


def _resumed(
    objective: Objective,
    optimizer: Any,
    config: TrainConfig,
    checkpoint: Path | None,
    start: Path | None,
    device: torch.device,
) -> tuple[TrainingState, int]:
    """Load the checkpoint, or the optimizer that the start model carries.

    Return the state, and the position of update 0 on the schedule.
    """
    carried = start / "state" if config.carry == "all" and start is not None else None
    if carried and not (carried / checkpoints.OPTIMIZER).is_file():
        raise UserError(
            "carry: got all, but the start model was saved without its optimizer. Use `carry: weights`, or start from "
            "a training that has `carry: all` or `schedule_updates`."
        )
    first = read_json(carried / "state.json")["schedule_update"] if carried else 0
    if checkpoint is not None:
        return checkpoints.load(checkpoint, objective, optimizer, device), first
    if carried:
        checkpoints.read_optimizer(optimizer, carried)
    return TrainingState(), first


def _update(
    objective: Objective,
    optimizer: Any,
    config: TrainConfig,
    state: TrainingState,
    batches: Batches,
    sums: GradientSums,
    *,
    seed: int,
    rate: float,
    device: torch.device,
) -> Outcome:
    """Make an update. The CPU does not wait for the device."""
    objective.train()
    objective.zero_grad(set_to_none=True)
    losses, operations = add_gradients(
        objective,
        batches.of(state.update),
        sums,
        parts=config.accumulate,
        seed=seed,
        update=state.update,
        device=device,
        precision=products(config, device),
    )
    parameters = [master_weights.master(p) for p in objective.parameters() if p.requires_grad]
    norm = sharding.clip(parameters, config.clip if config.clip is not None else math.inf)
    state.update += 1
    state.operations += operations
    for group in optimizer.param_groups:
        group["lr"] = rate
    sharding.pass_gradients(optimizer)
    optimizer.step()
    master_weights.round_weights(objective)
    return Outcome(state.update, losses, norm)


def _optimizer(objective: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    updated = [sharding.updated(master_weights.master(p)) for p in objective.parameters() if p.requires_grad]
    plain = [p for p in updated if p.ndim < 2]  # biases and norms are not decayed
    decayed = [p for p in updated if p.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adafactor":
        return Adafactor(groups, lr=config.learning_rate)
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def _patience_is_over(state: TrainingState, config: TrainConfig) -> bool:
    look = config.validate_on_dev
    return bool(look and look.patience is not None and state.looks_without_better >= look.patience)


def _validate(
    objective: Objective,
    dev: Objective,
    config: TrainConfig,
    state: TrainingState,
    out: Path,
    *,
    seed: int,
    device: torch.device,
) -> dict[str, float]:
    """Measure the validation rows, and keep the best weights by the config's measure."""
    assert config.validate_on_dev is not None
    objective.eval()
    dev.update = state.update  # losses may depend on it, for example through a temperature's warm-up
    measures = validate(dev, config, seed=seed, device=device)
    measure = config.validate_on_dev.measure
    best = state.best.value if state.best else None
    if better(measures[measure], best, lowest=measure in (LOSS, *objective.lowest)):
        state.best, state.looks_without_better = Best(measures[measure], state.update), 0
        checkpoints.save_best(out / "checkpoints", objective, state)
    else:
        state.looks_without_better += 1
    return {f"dev {name}": value for name, value in measures.items()}


def _finished(out: Path) -> dict[str, Any]:
    """Drop the remaining checkpoints of a finished training that was killed. Return the summary that it wrote."""
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    summary: dict[str, Any] = read_json(out / "state" / "state.json")["summary"]
    return summary


def _finish(
    objective: Objective,
    optimizer: Any,
    config: TrainConfig,
    out: Path,
    state: TrainingState,
    first: int,
    device: torch.device,
    *,
    still: bool,
) -> dict[str, Any]:
    """Write the model, and the state that a following training needs. Drop the checkpoints. Return the summary."""
    rate = objective.rate(device=device.type, precision=products(config, device))
    summary = {
        "updates": state.update,
        "model_seconds": round(state.seconds, 2),
        **({"roofline_seconds": round(state.operations / rate, 2)} if rate else {}),
        "seconds_per_update": round(state.seconds / max(1, state.update), 4),
        "rows_per_second": round(state.update * config.batch / max(1e-9, state.seconds), 2),
        "workers": workers(),
        **({"best": asdict(state.best)} if state.best else {}),
        **({"note": STILL} if still else {}),
        **(noam_peak(config, first, state.update) if config.schedule == "noam" else {}),
    }
    moments = checkpoints.whole_moments(optimizer) if config.chained else {}
    sharding.join(objective)
    master_weights.put_back(objective)
    if rank() == 0:
        if state.best is not None:
            best = checkpoints.best(out / "checkpoints", state)
            checkpoints.read_weights(objective, best, next(objective.parameters()).device)
        with replacing(out / "model") as folder:
            shutil.rmtree(out / "model", ignore_errors=True)
            objective.eval()
            objective.save(folder)
        with replacing(out / "state") as folder:
            shutil.rmtree(out / "state", ignore_errors=True)
            folder.mkdir()
            if config.chained:
                checkpoints.write_moments(moments, folder)
            write_json(folder / "state.json", {"schedule_update": first + state.update, "summary": summary})
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    wait_for_workers()
    return summary
