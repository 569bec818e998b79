"""The gradient of one update: a batch shared among workers, in parts, in pieces, in the precision asked for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from components import draws
from components.clock import at
from components.gather import rank, sum_gradients, total, workers
from components.text import to_device

Losses = dict[str, float]

BOTH_WAYS = 3
"""Operations of a forward and a backward pass, in those of a forward pass."""


def share(rows: list[int], parts: int, part: int) -> list[int]:
    """One worker's consecutive share of a batch; ValueError where it does not come out even."""
    if len(rows) % parts:
        raise ValueError(f"a batch of {len(rows)} groups cannot be shared among {parts} workers or parts evenly")
    size = len(rows) // parts
    return rows[part * size : (part + 1) * size]


def add_gradients(
    objective: Any, rows: list[int], *, parts: int, seed: int, step: int, device: torch.device, precision: str
) -> tuple[Losses, float]:
    """Add the whole batch's gradient to the parameters of every worker; the global means of the loss terms, and what
    this worker computed at least."""
    values: Losses = {}
    operations = 0.0
    for part in range(parts):
        mine = share(share(rows, parts, part), workers(), rank())
        torch.manual_seed(draws.number(seed, "dropout", step, part, rank()))
        with at("files"):
            batch = objective.collate(mine)
            operations += BOTH_WAYS * objective.operations(batch)
            batch = to_device(batch, device)
        with autocast(device, precision):
            representations = objective.encode(batch)
        terms = objective.terms(representations, batch)
        # A mean over all workers' rows; a sum over the whole batch is `parts` times the mean of its parts.
        alone = 1 / (parts * workers())
        here = [alone if term.rows is None else float(term.rows) for term in terms.values()]
        counts = total(torch.tensor(here, device=device))
        means = [term.value / count for term, count in zip(terms.values(), counts, strict=True)]
        (torch.stack(means).sum() / parts).backward()
        for name, mean in zip(terms, total(torch.stack(means)).tolist(), strict=True):
            values[name] = values.get(name, 0.0) + mean / parts
    sum_gradients([p for p in objective.parameters() if p.requires_grad])
    return values, operations


def autocast(device: torch.device, precision: str) -> Any:
    """bf16 matrix products, or none of it."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()
