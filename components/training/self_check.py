"""A check before the first update: many workers in chunks must get the same gradient as one process.

On a few training rows, without autocast and dropout, the fast computation is compared with a plain one. The fast one
has shares of workers, gathered vectors, parts of a batch, chunks, and our attention. The plain one is a single process
with whole batches, no recomputation, and the library's attention.

Public implementations were wrong by factors of the worker count, misplaced rows and missing gradients. These faults
went unnoticed for months, because their only sign is a slightly worse model.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparring.components.compute import chunking
from sparring.components.compute.gather import alone, of_workers, rank, workers
from sparring.components.config import UserError
from sparring.components.data.batches import to_device
from sparring.components.training.aside import aside
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.gradients import Losses, add_gradients, not_finite, over_workers
from sparring.components.training.objective import Objective, Visit
from sparring.components.training.prepared import Place, prepare
from sparring.components.training.sharding import whole

ROWS = 4
"""Number of rows in the check. There are more if each worker and part needs one."""
PIECES = 3
"""Minimum number of chunks in the fast computation, if there are as many texts."""
NEAR, NOTHING = 1e-2, 1e-4
"""Tolerance between gradients: a share of the plain gradient's length, plus a constant. Cosines over a temperature of
.01 multiply fp32's rounding errors by a hundred. An error by a factor is far larger."""


class SelfCheckError(RuntimeError):
    """The fast gradient differs from the plain gradient."""


@dataclass(frozen=True)
class Plain:
    """Losses by name, and gradients by parameter, of a single process.

    The gradients are in CPU memory, because a model that is to be sharded may fill an accelerator.
    """

    values: Losses
    gradients: dict[str, Tensor]
    visits: list[Visit]
    parts: int


def plain(objective: Objective, config: TrainConfig, visits: list[Visit], *, device: torch.device) -> Plain:
    """Compute the losses and the gradient of some rows of a batch in this process alone, without chunks.

    Call this before the model gets fast operations. Every worker computes the same.
    """
    parts = min(config.accumulate, 2)
    part_rows = max(workers(), min(config.batch // config.accumulate, math.ceil(ROWS / parts)))
    count = parts * part_rows
    visits = visits[:count]
    values: Losses = {}
    with aside(objective, device), alone(), chunking.unchunked(), _states_aside(device):
        for part in range(parts):
            chosen = visits[part * count // parts : (part + 1) * count // parts]
            batch = to_device(objective.collate(chosen), device)
            terms = objective.terms(objective.encode(batch), batch)
            means = {name: term.value / (term.rows * parts if term.rows else 1) for name, term in terms.items()}
            torch.stack(list(means.values())).sum().backward()
            values |= {name: values.get(name, 0.0) + float(mean.detach()) for name, mean in means.items()}
        gradients = {name: p.grad.cpu() for name, p in objective.named_parameters() if p.grad is not None}
    if not gradients:
        raise UserError(
            f"losses: no gradient reaches the model from {', '.join(values)}, so nothing would be learned. Compute the "
            "loss from the scores with torch operations."
        )
    if wrong := not_finite(values, float(torch.nn.utils.get_total_norm(gradients.values()))):
        raise FloatingPointError(
            f"Before the first update, on {count} rows in fp32, {wrong}. Look for a division by 0 in a loss "
            f"({', '.join(values)}), or for weights of the start model that are not finite."
        )
    return Plain(values, gradients, visits, parts)


def compare(objective: Objective, expected: Plain, *, device: torch.device) -> float:
    """Return the distance between the fast and the plain gradient, as a share of the plain gradient's length.

    Raise SelfCheckError if the distance is too large, or if losses differ.
    """
    place, parts = Place(workers(), rank()), expected.parts
    shares = (
        prepare(objective, expected.visits, place, parts=parts, part=part, device=device) for part in range(parts)
    )
    with aside(objective, device), chunking.at_least(PIECES), GradientSums(objective) as sums_of_workers:
        means, _ = add_gradients(
            objective, shares, sums_of_workers, parts=parts, seed=0, update=0, device=device, precision="fp32"
        )
        values = over_workers([means])[0]
        sums = torch.zeros(3, dtype=torch.float64)
        for name, parameter in objective.named_parameters():  # all workers gather one parameter at a time
            gradient, reference = parameter.grad, expected.gradients.get(name)
            if gradient is not None or reference is not None:
                a = torch.zeros(1, device=device).double() if gradient is None else whole(gradient).double()
                b = torch.zeros(1, device=device).double() if reference is None else reference.to(device).double()
                sums += torch.stack([(a - b).square().sum(), b.square().sum(), a.square().sum()]).cpu()
    apart, length, norm = sums.sqrt().tolist()
    wrong = [
        f"{name} is {value:.6g} and should be {expected.values[name]:.6g}"
        for name, value in values.items()
        if not abs(value - expected.values[name]) <= NEAR * abs(expected.values[name]) + NOTHING
    ]
    if not apart <= NEAR * length + NOTHING:
        wrong.append(
            f"the gradient has norm {norm:.4g}, and its distance from the right one (norm {length:.4g}) is {apart:.4g}"
        )
    if any(of_workers(len(wrong))):  # all workers stop, or none
        raise SelfCheckError(
            f"The check before the first update failed: for {len(expected.visits)} rows, {workers()} workers with "
            f"chunks do not get the result of one process: {'; '.join(wrong) or 'a different worker has the details'}. "
            f"This is a fault of the objective, of one of its losses ({', '.join(values)}), or of Sparring, not of "
            "your data."
        )
    return apart / length if length else 0.0


def _states_aside(device: torch.device) -> AbstractContextManager[Any]:
    """Keep the states for a backward pass in CPU memory.

    Without chunks, a batch may not fit on an accelerator.
    """
    return nullcontext() if device.type == "cpu" else torch.autograd.graph.save_on_cpu()
