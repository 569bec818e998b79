"""The gradient of an update, from a batch that is divided among workers, parts and chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from sparring.components.compute.gather import rank, sum_over_workers, workers
from sparring.components.compute.precision import autocast, computed
from sparring.components.rng import keyed_int
from sparring.components.training import master_weights
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.objective import Objective
from sparring.components.training.prepared import Prepared

Losses = dict[str, float]


class Means(NamedTuple):
    """Losses of a batch on the device. Reading them waits for the device, so it is done once for several updates."""

    names: list[str]
    values: Tensor
    """Means over the rows of all workers, as far as this worker's rows contribute: (parts, names)."""


def add_gradients(
    objective: Objective,
    prepared: Iterable[Prepared],
    sums: GradientSums,
    *,
    parts: int,
    seed: int,
    update: int,
    device: torch.device,
    precision: str,
) -> tuple[Means, float]:
    """Add the gradient of the whole batch to the parameters of every worker.

    `prepared` are the parts of this worker's share. Return the loss terms, and a lower bound of this worker's
    floating-point operations. The CPU does not wait for the device.
    """
    values: list[Tensor] = []
    terms: list[str] = []
    operations = 0.0
    objective.update = update
    for part, share in enumerate(prepared):
        torch.manual_seed(keyed_int(seed, "dropout", update, part, rank()))
        operations += share.operations
        batch = share.on(device)
        with autocast(precision, device.type, keep=False):
            representations = objective.encode(batch)
        losses = objective.terms(representations, batch)
        # Means are over the rows of all workers. For sums (rows is None), the factor undoes the division by `parts`.
        rows = [1 / (parts * workers()) if term.rows is None else float(term.rows) for term in losses.values()]
        counts = sum_over_workers(torch.tensor(rows).to(device, non_blocking=True))
        counts = counts.masked_fill(counts == 0, 1.0)  # there may be no rows, for example if no token is masked
        means = torch.stack([term.value / count for term, count in zip(losses.values(), counts.unbind(), strict=True)])
        with sums.last_pass() if part == parts - 1 else nullcontext():
            (means.sum() / parts).backward()
        master_weights.take_gradients(objective)
        terms = list(losses)
        values.append(means.detach())
    return Means(terms, torch.stack(values)), operations


def over_workers(means: list[Means]) -> list[Losses]:
    """Return the losses of some batches, summed over the workers. This waits for the device and for all workers."""
    if not means:
        return []
    losses = sum_over_workers(torch.stack([batch.values for batch in means])).tolist()
    return [
        {name: sum(part[i] / len(parts) for part in parts) for i, name in enumerate(batch.names)}
        for batch, parts in zip(means, losses, strict=True)
    ]


def not_finite(losses: Losses, norm: float) -> str:
    """Name the losses that are not finite, or else the gradient if its norm is not. Return "" if all are finite."""
    values = losses if not all(map(math.isfinite, losses.values())) else {"the gradient": norm}
    return ", ".join(f"{name} is {value}" for name, value in values.items() if not math.isfinite(value))


def products(config: TrainConfig, device: torch.device) -> str:
    """Return the precision of matrix products. With bf16 weights it is bf16 on every device."""
    return "bf16" if config.weights == "bf16" else computed(config.precision, device.type)
