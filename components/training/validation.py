"""Validation of the model during training, on rows that it is not trained on."""

from __future__ import annotations

import math

import torch

from sparring.components.compute.gather import alone, rank, sum_over_workers, workers
from sparring.components.compute.precision import autocast
from sparring.components.config import UserError, listing
from sparring.components.data.batches import to_device
from sparring.components.training.config import LOSS as LOSS
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradients import products
from sparring.components.training.objective import Objective, Visit


@torch.no_grad()
def validate(dev: Objective, config: TrainConfig, *, seed: int, device: torch.device) -> dict[str, float]:
    """Compute the measures over the validation rows. Each batch is evaluated by one of the workers.

    Every validation has the same batches and the same random choices, for any number of workers.
    """
    assert config.validate_on_dev is not None
    measure, precision = config.validate_on_dev.measure, products(config, device)
    dev.eval()
    count = dev.rows()
    batches = [range(first, min(count, first + config.batch)) for first in range(0, count, config.batch)]
    mine = batches[rank() :: workers()]
    turns = [(rows, 1.0) for rows in mine]
    missing = -(-len(batches) // workers()) - len(mine)
    turns += [(rows, 0.0) for rows in batches[:1] * missing]  # so that all workers run equally often
    values: dict[str, torch.Tensor] = {}
    losses: list[torch.Tensor] = []
    for rows, counted in turns:  # a worker without a batch gets the measures' names from the first batch
        batch = to_device(dev.collate([Visit(row, 0, seed) for row in rows]), device)
        with autocast(precision, device.type):
            representations = dev.encode(batch)
        with alone():
            judged = dev.judge(representations, batch)
            terms = dev.terms(representations, batch) if measure == LOSS and LOSS not in judged else {}
        for name, column_values in judged.items():
            column = values.setdefault(name, torch.zeros(count, dtype=torch.float64, device=device))
            if counted:
                column[rows.start : rows.stop] = column_values.double()
        if terms:
            sums = [[counted * float(term.value), counted * (term.rows or 1)] for term in terms.values()]
            losses.append(torch.tensor(sums, dtype=torch.float64, device=device))
    measures = dev.summarise({name: sum_over_workers(column).tolist() for name, column in values.items()})
    if losses:
        values_and_rows = sum_over_workers(torch.stack(losses).sum(0))
        measures[LOSS] = float((values_and_rows[:, 0] / values_and_rows[:, 1]).sum())
    if measure not in measures:
        raise UserError(
            f"validate_on_dev: measure: got {measure!r}, which this objective does not have. Use one of these: "
            f"{listing(dict.fromkeys([*measures, LOSS]))}."
        )
    return measures


def better(value: float, best: float | None, *, lowest: bool) -> bool:
    """Return True if a value is better than the best so far. With `lowest`, lower values are better."""
    return not math.isnan(value) and (best is None or (value < best if lowest else value > best))
