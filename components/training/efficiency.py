"""The number of workers that a training is fastest with. It is measured before the first update."""

from __future__ import annotations

import time

import torch

from sparring.components.compute.gather import among_first, of_first, rank, workers
from sparring.components.training.aside import aside
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.gradients import add_gradients, products
from sparring.components.training.objective import Objective
from sparring.components.training.prepared import Place, prepare
from sparring.components.training.schedule import visits_of_update

PASSES = 3
"""Number of passes that are timed for each number of workers. The shortest counts."""
WORTH = 0.9
"""Twice as many workers are used if they need at most this share of the time."""


def efficient_workers(objective: Objective, config: TrainConfig, *, seed: int, device: torch.device) -> int:
    """Return the number of workers that is worth while for this training, at most `workers()`.

    All workers, half of them, a quarter and so on compute the gradient of the first update. Every worker must call
    this. The objective does not change.
    """
    most = min(workers(), config.batch // config.accumulate)
    counts = [most >> halvings for halvings in range(most.bit_length())]
    seconds = {count: _seconds(objective, config, count, seed=seed, device=device) for count in counts}
    chosen = 1
    for count in reversed(counts):
        if seconds[count] <= WORTH * seconds[chosen]:
            chosen = count
    return chosen


def _seconds(objective: Objective, config: TrainConfig, count: int, *, seed: int, device: torch.device) -> float:
    """Measure how long the first workers take for a part of the first batch: the first worker's time."""
    visits = visits_of_update(config, objective.rows(), seed=seed, update=0)
    times = [0.0]
    with among_first(count) as is_member:
        if is_member:
            share = prepare(objective, visits, Place(workers(), rank()), parts=config.accumulate, part=0, device=device)
            with aside(objective, device), GradientSums(objective) as sums:
                times = []
                for _ in range(1 + PASSES):  # the first pass allocates memory and learns the order of the sums
                    began = time.perf_counter()
                    add_gradients(
                        objective,
                        [share],
                        sums,
                        parts=1,
                        seed=seed,
                        update=0,
                        device=device,
                        precision=products(config, device),
                    )
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    times.append(time.perf_counter() - began)
    return of_first(round(min(times[1:] or times) * 1e6)) / 1e6
