"""The gradient of an update, from a batch that is divided among workers, parts and chunks."""

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
    """Take a worker's or a part's consecutive share of a batch. Raise ValueError if the shares are not equal."""
    if len(rows) % parts:
        raise ValueError(f"A batch of {len(rows)} rows cannot be divided evenly among {parts} workers or parts.")
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
    """Add the gradient of the whole batch to the parameters of every worker.

    Return the means of the loss terms over all workers, and a lower bound of this worker's floating-point operations.
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
        # Means are over the rows of all workers. For sums (rows is None), the factor undoes the division by `parts`.
        alone = 1 / (parts * workers())
        rows = [alone if term.rows is None else float(term.rows) for term in terms.values()]
        counts = sum_over_workers(torch.tensor(rows, device=device))
        counts = counts.masked_fill(counts == 0, 1.0)  # there may be no rows, for example if no token is masked
        means = [term.value / count for term, count in zip(terms.values(), counts, strict=True)]
        (torch.stack(means).sum() / parts).backward()
        master_weights.take_gradients(objective)
        for name, mean in zip(terms, sum_over_workers(torch.stack(means)).tolist(), strict=True):
            values[name] = values.get(name, 0.0) + mean / parts
    sum_gradients([master_weights.master(p) for p in objective.parameters() if p.requires_grad and not is_sharded(p)])
    return values, operations


def not_finite(losses: Losses, norm: float) -> str:
    """Name the losses that are not finite, or else the gradient if its norm is not. Return "" if all are finite."""
    values = losses if not all(map(math.isfinite, losses.values())) else {"the gradient": norm}
    return ", ".join(f"{name} is {value}" for name, value in values.items() if not math.isfinite(value))


def products(config: TrainConfig, device: torch.device) -> str:
    """Return the precision of matrix products. With bf16 weights it is bf16 on every device."""
    return "bf16" if config.weights == "bf16" else computed(config.precision, device.type)
