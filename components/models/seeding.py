"""Torch's random numbers, for what is new in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside this block torch's random numbers come from `seed`; afterwards the generator is as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
