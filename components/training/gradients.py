"""The gradient of one update: a batch shared among workers, in parts, in pieces, in the precision asked for."""

from __future__ import annotations

import math
from typing import TypeVar

import torch

from sparring.components.compute.gather import rank, sum_gradients, sum_over_workers, workers
from sparring.components.compute.precision import autocast, computed
from sparring.components.data.batches import to_device
from sparring.components.rng import keyed_int
from sparring.components.timing import timed
from sparring.components.training import master_weights
from sparring.components.training.config import TrainConfig
from sparring.components.training.objective import Objective, Visit
from sparring.components.training.sharding import is_sharded

Losses = dict[str, float]

T = TypeVar("T")


def share(rows: list[T], parts: int, part: int) -> list[T]:
    """Take a worker's consecutive share of a batch. ValueError if it does not come out even."""
    if len(rows) % parts:
        raise ValueError(f"a batch of {len(rows)} rows cannot be shared among {parts} workers or parts evenly")
    size = len(rows) // parts
    return rows[part * size : (part + 1) * size]


def add_gradients(
    objective: Objective,
    visits: list[Visit],
    *,
    parts: int,
    seed: int,
    update: int,
    device: torch.device,
    precision: str,
) -> tuple[Losses, float]:
    """Add the whole batch's gradient to the parameters of every worker.

    Return the global means of the loss terms, and a lower bound of this worker's floating-point operations.
    """
    values: Losses = {}
    operations = 0.0
    objective.update = update
    for part in range(parts):
        mine = share(share(visits, parts, part), workers(), rank())
        torch.manual_seed(keyed_int(seed, "dropout", update, part, rank()))
        with timed("files"):
            batch = objective.collate(mine)
            operations += objective.operations(batch) or 0.0
            batch = to_device(batch, device)
        with autocast(precision, device.type, keep=False):
            representations = objective.encode(batch)
        terms = objective.terms(representations, batch)
        # A mean over all workers' rows; a sum over the whole batch is `parts` times the mean of its parts.
        alone = 1 / (parts * workers())
        rows = [alone if term.rows is None else float(term.rows) for term in terms.values()]
        counts = sum_over_workers(torch.tensor(rows, device=device))
        counts = counts.masked_fill(counts == 0, 1.0)  # of no rows, as where nothing is masked in short texts
        means = [term.value / count for term, count in zip(terms.values(), counts, strict=True)]
        (torch.stack(means).sum() / parts).backward()
        master_weights.take_gradients(objective)
        for name, mean in zip(terms, sum_over_workers(torch.stack(means)).tolist(), strict=True):
            values[name] = values.get(name, 0.0) + mean / parts
    sum_gradients([master_weights.master(p) for p in objective.parameters() if p.requires_grad and not is_sharded(p)])
    return values, operations


def not_finite(losses: Losses, norm: float) -> str:
    """Say which losses are not finite, or that the gradient's norm is not. Empty if all are."""
    values = losses if not all(map(math.isfinite, losses.values())) else {"the gradient": norm}
    return ", ".join(f"{name} is {value}" for name, value in values.items() if not math.isfinite(value))


def products(config: TrainConfig, device: torch.device) -> str:
    """Return the precision of a training's products. With weights in bf16 they are in bf16 on every device."""
    return "bf16" if config.weights == "bf16" else computed(config.precision, device.type)
