"""Before a training's first update: is the gradient that many workers find in pieces that of one process?

The way that a training goes (shares of workers, what they gather, parts of a batch, pieces of few tokens, our own
attention) is compared, without autocast and dropout, with the plain way on a few of its own rows: one process, whole
batches of which nothing is run again, the model's attention as its library has it. Factors of the worker count,
misplaced rows and forgotten gradients are what public implementations were wrong in, for months and without a sign but
a model that is a bit worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparring.components.compute import chunking
from sparring.components.compute.gather import alone, sum_over_workers, workers
from sparring.components.config import UserError
from sparring.components.data.batches import to_device
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradients import Losses, add_gradients, not_finite
from sparring.components.training.objective import Objective, Visit
from sparring.components.training.sharding import whole

ROWS = 4
"""How many are looked at, at least: one for each worker and part."""
PIECES = 3
"""What the fast way encodes at once is cut into at least so many pieces, where there are so many texts."""
NEAR, NOTHING = 1e-2, 1e-4
"""How far gradients may be apart: this share of the plain one's length, and this much besides. A softmax of cosines
over .01 multiplies what fp32 rounds by a hundred; what is wrong by a factor is far beyond."""


class SelfCheckError(RuntimeError):
    """The fast way to the gradient is not the plain one."""


@dataclass(frozen=True)
class Plain:
    """What one process finds: losses by name, and the gradient of each parameter that has one, in the machine's
    memory: a model that is sharded may fill an accelerator."""

    values: Losses
    gradients: dict[str, Tensor]
    visits: list[Visit]
    parts: int


def plain(objective: Objective, config: TrainConfig, visits: list[Visit], *, device: torch.device) -> Plain:
    """Losses and gradient of some of a batch's rows by this process alone, in one piece.

    Take it before anything in the model is made faster. Every worker computes the same.
    """
    parts = min(config.accumulate, 2)
    most = config.batch // (config.accumulate * workers())
    count = parts * workers() * min(most, math.ceil(ROWS / (parts * workers())))
    visits = visits[:count]
    values: Losses = {}
    with _aside(objective, device), alone(), chunking.unchunked(), _states_aside(device):
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
            f"losses: no gradient reaches the model from {', '.join(values)}, so that nothing would be learnt; "
            "accepted: values computed from the scores by torch"
        )
    if wrong := not_finite(values, float(torch.nn.utils.get_total_norm(gradients.values()))):
        raise FloatingPointError(
            f"before the first update, of {count} rows in fp32: {wrong}; such as from a division by 0 in a loss "
            f"({', '.join(values)}), or from a start model with such weights"
        )
    return Plain(values, gradients, visits, parts)


def compare(objective: Objective, expected: Plain, *, device: torch.device) -> float:
    """Return how far the fast gradient is from the plain gradient, as a share of its length.

    Raise SelfCheckError if it is too far.
    """
    with _aside(objective, device), chunking.at_least(PIECES):
        values, _ = add_gradients(
            objective, expected.visits, parts=expected.parts, seed=0, update=0, device=device, precision="fp32"
        )
        sums = torch.zeros(3, dtype=torch.float64)
        for name, parameter in objective.named_parameters():  # one whole at a time, by all workers together
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
        wrong.append(f"the gradient is {norm:.4g} long and {apart:.4g} away from one of {length:.4g}")
    if sum_over_workers(torch.tensor([float(len(wrong))], device=device)).item() > 0:  # all workers stop, or none
        raise SelfCheckError(
            f"the check before the first update failed: {workers()} workers, in pieces, do not find what one process "
            f"finds for {len(expected.visits)} rows: {'; '.join(wrong) or 'another worker says how'}. This is a fault "
            f"of the objective, of one of its losses ({', '.join(values)}), or of Sparring, not of your data"
        )
    return apart / length if length else 0.0


def _states_aside(device: torch.device) -> AbstractContextManager[Any]:
    """Keep what a backward pass needs in the machine's memory. Whole batches may not fit on an accelerator, where
    the training itself goes in pieces.
    """
    return nullcontext() if device.type == "cpu" else torch.autograd.graph.save_on_cpu()


@contextmanager
def _aside(objective: Objective, device: torch.device) -> Iterator[None]:
    """Without dropout; gradients and random numbers are afterwards as they were before."""
    training = objective.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        objective.eval()
        objective.zero_grad(set_to_none=True)
        try:
            yield
        finally:
            objective.zero_grad(set_to_none=True)
            objective.train(training)
