"""Passes that are no part of a training: its random numbers and gradients stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparring.components.training.objective import Objective


@contextmanager
def aside(objective: Objective, device: torch.device) -> Iterator[None]:
    """Turn dropout off, and clear gradients before and after. Random number generators are restored."""
    training = objective.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        objective.eval()
        objective.zero_grad(set_to_none=True)
        try:
            yield
        finally:
            objective.zero_grad(set_to_none=True)
            objective.train(training)
