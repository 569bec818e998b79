"""Seeding of torch's random numbers for new weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers inside this block. Afterwards restore the generator's state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
