"""The training loop: one function for one process, for many, and after any interruption.

What a step sees depends on (seed, step) alone: its rows, its dropout, its learning rate. So a checkpoint is the
weights, the optimizer and a number, and a run that was killed ends as one that was not.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from components import checkpoints, draws, self_check
from components.clock import at
from components.cpu_training import quicken
from components.files import replacing, write_json
from components.gather import rank, total, workers
from components.gradients import Losses, add_gradients, autocast
from components.objectives.terms import Objective
from components.text import to_device
from components.train_config import TrainConfig


def train(
    objective: Any,
    config: TrainConfig,
    *,
    out: Path,
    seed: int,
    start: Path | None,
    device: torch.device,
    dev: Objective | None,
    save_seconds: float,
    on_step: Callable[[int, str], None],
    on_save: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train to the last step from wherever `out` is; a summary. Every worker calls it.

    The first worker calls `on_save` after each checkpoint.
    """
    finished = out / "state" / "state.json"
    if finished.exists():  # killed between the last write of the training and the step's record
        return json.loads(finished.read_text())["summary"]
    objective.to(device)
    expected = None
    if not checkpoints.finished(out / "checkpoints") and self_check.wanted(objective):
        rows = rows_of_step(config, objective.rows(), seed=seed, step=0)
        with at("compute"):
            expected = self_check.plain(objective, config, rows, device=device)
    if device.type == "cpu":
        quicken(objective)
    if expected is not None:
        with at("compute"):
            self_check.compare(objective, expected, device=device)
    optimizer = _optimizer(objective, config)
    state = checkpoints.load(out / "checkpoints", objective, optimizer, device)
    first = 0
    if config.carry == "all" and start is not None:
        first = json.loads((start / "state" / "state.json").read_text())["schedule_step"]
        if state is None:
            checkpoints.read_optimizer(optimizer, start / "state")
    state = state or {"step": 0, "best": None, "waited": 0, "seconds": 0.0, "operations": 0.0, "sums": {}, "count": 0}
    log = _Log(out / "metrics.jsonl", state, config)
    began, saved = time.monotonic(), time.monotonic()
    before = state["seconds"]
    on_step(state["step"], "")
    look = config.validate_on_dev if dev is not None else None
    with at("compute"):
        if look and look.from_start and state["step"] == 0 and state["best"] is None:
            _validate(objective, dev, config, state, out, device)
            log.write({"step": 0, **state["last"]})
        while state["step"] < config.steps and not _patient_no_more(state, config):
            step = state["step"]
            rate = learning_rate(config, first + step)
            values, norm, done = _update(objective, optimizer, config, seed=seed, step=step, rate=rate, device=device)
            state |= {"step": step + 1, "seconds": before + time.monotonic() - began}
            state["operations"] += done
            log.add(state, values, rate, norm)
            if look and (step + 1) % look.every == 0:
                _validate(objective, dev, config, state, out, device)
                log.write({"step": step + 1, **state["last"]})
            if _agree(time.monotonic() - saved > save_seconds, device) and step + 1 < config.steps:
                checkpoints.save(out / "checkpoints", objective, optimizer, state)
                if rank() == 0:
                    on_save()
                saved = time.monotonic()
            on_step(state["step"], f"loss {sum(values.values()):.3f}")
    floor = state["operations"] / objective.rate(device=device.type, precision=config.precision)
    return _finish(objective, optimizer, config, out, state, first, floor)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of an update (from 0): rising over the warm-up share, then falling or constant."""
    steps = config.schedule_steps or config.steps
    rising = config.warmup * steps
    if step + 1 <= rising:
        return config.learning_rate * (step + 1) / rising
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "noam":
        return config.learning_rate * math.sqrt(max(1.0, rising) / (step + 1))
    return config.learning_rate * min(1.0, max(0.0, (steps - step) / max(1.0, steps - rising)))


def _peak(config: TrainConfig, first: int, steps: int) -> dict[str, float]:
    """The highest learning rate that a Noam schedule came to, and the multiplier that its authors would name."""
    rates = [learning_rate(config, first + step) for step in range(steps)]
    multiplier = config.learning_rate * math.sqrt(max(1.0, config.warmup * (config.schedule_steps or config.steps)))
    return {"peak_learning_rate": max(rates, default=0.0), "noam_multiplier": multiplier}


def rows_of_step(config: TrainConfig, rows: int, *, seed: int, step: int) -> list[int]:
    """The rows of one update: each pass over the table is a new order, and a batch may span two passes."""
    first = step * config.batch
    chosen: list[int] = []
    while len(chosen) < config.batch:
        position = first + len(chosen)
        order = _order(rows, seed, position // rows)
        take = order[position % rows : position % rows + config.batch - len(chosen)]
        chosen += take.tolist()
    return chosen


_orders: dict[tuple[int, int, int], Any] = {}


def _order(rows: int, seed: int, visit: int) -> Any:
    key = (rows, seed, visit)
    if key not in _orders:
        _orders.clear()
        _orders[key] = draws.generator(seed, "order", visit).permutation(rows)
    return _orders[key]


def _update(
    objective: Any, optimizer: Any, config: TrainConfig, *, seed: int, step: int, rate: float, device: torch.device
) -> tuple[Losses, float, float]:
    """One update; the global means of the loss terms, the gradient's norm, and what this worker computed at least."""
    objective.train()
    optimizer.zero_grad(set_to_none=True)
    rows = rows_of_step(config, objective.rows(), seed=seed, step=step)
    values, operations = add_gradients(
        objective, rows, parts=config.accumulate, seed=seed, step=step, device=device, precision=config.precision
    )
    parameters = [p for p in objective.parameters() if p.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(parameters, config.clip if config.clip is not None else math.inf)
    if not math.isfinite(float(norm)):
        raise FloatingPointError(f"step {step + 1}: the gradient is {float(norm)}; lower the learning rate or use fp32")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return values, float(norm), operations


def _optimizer(objective: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in objective.named_parameters() if p.requires_grad]
    plain = [p for name, p in named if p.ndim < 2]  # biases and norms are not decayed
    decayed = [p for name, p in named if p.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=config.learning_rate)
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


class _Log:
    """Means over intervals, one JSON line each, written by the first worker; a resumed run cuts what came after.

    The last interval ends with the last step, however long it is.
    """

    def __init__(self, path: Path, state: dict[str, Any], config: TrainConfig) -> None:
        self._path, self._config = path, config
        if rank() == 0 and path.exists():
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [json.dumps(line) + "\n" for line in lines if line["step"] <= state["step"]]
            with replacing(path) as temporary:
                temporary.write_text("".join(kept))

    def add(self, state: dict[str, Any], values: Losses, rate: float, norm: float) -> None:
        for name, value in values.items():
            state["sums"][name] = state["sums"].get(name, 0.0) + value
        state["count"] += 1
        if state["step"] % self._config.log_every == 0 or state["step"] == self._config.steps:
            means = {name: round(value / state["count"], 6) for name, value in state["sums"].items()}
            self.write(
                {"step": state["step"], **means, "learning_rate": rate, "gradient_norm": round(norm, 5),
                 "seconds": round(state["seconds"], 2)}
            )  # fmt: skip
            state |= {"sums": {}, "count": 0}

    def write(self, line: dict[str, Any]) -> None:
        if rank() == 0:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _agree(here: bool, device: torch.device) -> bool:
    """Whether the first worker says yes: clocks differ between workers, and saving is done together."""
    if workers() == 1:
        return here
    answer = torch.tensor([1.0 if here and rank() == 0 else 0.0], device=device)
    return bool(total(answer).item() > 0)


def _patient_no_more(state: dict[str, Any], config: TrainConfig) -> bool:
    validation = config.validate_on_dev
    return bool(validation and validation.patience is not None and state["waited"] >= validation.patience)


@torch.no_grad()
def _validate(
    objective: Any, dev: Any, config: TrainConfig, state: dict[str, Any], out: Path, device: torch.device
) -> None:
    """Measures over the development table, shared among the workers; the weights that are best by one are kept.

    Of an objective whose scores have a temperature of their own, the loss under the table's own targets is among them:
    with soft labels it falls while ranks do not get better (paper 003, Figure 2).
    """
    assert config.validate_on_dev is not None
    asked = config.validate_on_dev.measure
    calibrated = getattr(dev, "calibrated", False)
    objective.eval()
    dev.model = objective.model
    ranks: list[float] = []
    losses: list[float] = []
    mine = list(range(rank(), dev.rows(), workers()))
    for start in range(0, len(mine), config.batch):
        batch = to_device(dev.collate(mine[start : start + config.batch]), device)
        with autocast(device, config.precision):
            representations = dev.encode(batch)
        for scores, targets in dev.judge(representations, batch):
            place = best_rank(scores, targets)
            ranks.append(float(place == 1) if asked == "accuracy" else 1.0 / place)
            if calibrated:
                losses.append(float(_divergence(scores, targets)))
    found = {f"dev {'accuracy' if asked == 'accuracy' else 'RR'}": _mean(ranks, device)}
    if calibrated:
        found["dev loss"] = _mean(losses, device)
    value, sign = found[f"dev {asked}"], -1 if asked == "loss" else 1
    state["last"] = found
    if state["best"] is None or sign * value > sign * state["best"]["value"]:
        state |= {"best": {"value": value, "step": state["step"]}, "waited": 0}
        if rank() == 0:
            checkpoints.write(out / "checkpoints" / f"best-{state['step']:06d}", objective, None, {})
    else:
        state["waited"] += 1


def _mean(values: list[float], device: torch.device) -> float:
    """Over the values of all workers."""
    value, count = total(torch.tensor([sum(values), float(len(values))], device=device)).tolist()
    return float(value / max(count, 1))


def _divergence(scores: Tensor, targets: Tensor) -> Tensor:
    """KL of the scores' softmax from the targets, which need not sum to 1."""
    targets = targets / targets.sum()
    return (torch.xlogy(targets, targets) - targets * scores.log_softmax(-1)).sum()


def best_rank(scores: Tensor, targets: Tensor) -> int:
    """The rank, from 1, of the best-scored candidate with a target; ties count against it."""
    best = scores[targets > 0].max()
    return int((scores[targets <= 0] >= best).sum()) + 1


def _finish(
    objective: Any, optimizer: Any, config: TrainConfig, out: Path, state: dict[str, Any], first: int, floor: float
) -> dict[str, Any]:
    """Write the model, and what a training that carries on from it needs; drop the checkpoints."""
    best = state["best"]
    if best is not None:
        kept = out / "checkpoints" / f"best-{best['step']:06d}"
        checkpoints.read_weights(objective, kept, next(objective.parameters()).device)
    summary = {
        "steps": state["step"],
        "model_seconds": round(state["seconds"], 2),
        "floor_seconds": round(floor, 2),
        "seconds_per_step": round(state["seconds"] / max(1, state["step"]), 4),
        "groups_per_second": round(state["step"] * config.batch / max(1e-9, state["seconds"]), 2),
        "workers": workers(),
        **({"best": best} if best else {}),
        **(_peak(config, first, state["step"]) if config.schedule == "noam" else {}),
    }
    if rank() == 0:
        with replacing(out / "model") as folder:
            shutil.rmtree(out / "model", ignore_errors=True)
            objective.eval()
            objective.save(folder)
        (out / "state").mkdir(exist_ok=True)
        checkpoints.write_optimizer(optimizer, out / "state")
        write_json(out / "state" / "state.json", {"schedule_step": first + state["step"], "summary": summary})
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    if workers() > 1:
        dist.barrier()
    return summary


def objective_named(name: str) -> Any:
    """The objective class of `components/objectives/<name>.py`."""
    return importlib.import_module(f"components.objectives.{name}").Objective
