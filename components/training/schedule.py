"""The learning rate and the rows of an update, which depend only on the config, the seed and the update's number."""

from __future__ import annotations

import math
from typing import Any

from sparring.components.rng import keyed_rng
from sparring.components.training.config import TrainConfig
from sparring.components.training.objective import Visit


def learning_rate(config: TrainConfig, update: int) -> float:
    """Return the learning rate of an update (from 0). It rises during the warm-up, and then falls or is constant."""
    updates = config.schedule_updates or config.updates
    rising = config.warmup * updates
    if update + 1 <= rising:
        return config.learning_rate * (update + 1) / rising
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "noam":
        return config.learning_rate * math.sqrt(max(1.0, rising) / (update + 1))
    return config.learning_rate * min(1.0, max(0.0, (updates - update) / max(1.0, updates - rising)))


def noam_peak(config: TrainConfig, first: int, updates: int) -> dict[str, float]:
    """Return the highest learning rate that a Noam schedule reached, and the multiplier m that papers report."""
    rates = [learning_rate(config, first + update) for update in range(updates)]
    multiplier = config.learning_rate * math.sqrt(max(1.0, config.warmup * (config.schedule_updates or config.updates)))
    return {"peak_learning_rate": max(rates, default=0.0), "noam_multiplier": multiplier}


def visits_of_update(config: TrainConfig, rows: int, *, seed: int, update: int) -> list[Visit]:
    """Return the rows of an update. Each pass over the table has a new order. A batch may span several passes."""
    first = update * config.batch
    visits: list[Visit] = []
    while len(visits) < config.batch:
        position = first + len(visits)
        visit = position // rows
        order = _order(rows, seed, visit)
        taken = order[position % rows : position % rows + config.batch - len(visits)]
        visits += [Visit(row, visit, seed) for row in taken.tolist()]
    return visits


_orders: dict[tuple[int, int, int], Any] = {}


def _order(rows: int, seed: int, visit: int) -> Any:
    key = (rows, seed, visit)
    if key not in _orders:
        _orders.clear()
        _orders[key] = keyed_rng(seed, "order", visit).permutation(rows)
    return _orders[key]
