"""How much arithmetic a model's matrix products are, and how fast this processor does such products.

Together they are the time below which no program can go here: the floor. What a step takes beyond it went to memory,
to what stands between the products, to padding.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SECONDS = 0.1
"""How long products are tried at least, after a round to warm up."""

Shape = tuple[int, int]


class Products:
    """The matrix products of an encoder's layers; with `first_only`, those that the last state of a text's first token
    takes: of the last layer the keys and values of all tokens, and everything of that one."""

    def __init__(self, encoder: Any, *, first_only: bool = False) -> None:
        lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
        parts = {id(part): part for layers in lists for part in layers.modules() if isinstance(part, nn.Linear)}
        self._shapes = tuple((part.in_features, part.out_features) for part in parts.values())
        layers, self._width = encoder.config.num_hidden_layers, encoder.config.hidden_size
        each = sum(2.0 * rows * columns for rows, columns in self._shapes)
        self._whole = layers - 1 if first_only else layers
        self._of_layer, self._last = each / layers, 4.0 * self._width**2 if first_only else 0.0

    def operations(self, lengths: np.ndarray) -> float:
        """Floating-point operations of a forward pass over texts of these lengths, padding left out."""
        tokens, squares = lengths.sum(), np.square(lengths, dtype=np.float64).sum()
        total = self._whole * (self._of_layer * tokens + 4.0 * self._width * squares)
        if self._last:
            of_first = (self._of_layer - self._last) * len(lengths) + 4.0 * self._width * tokens
            total += self._last * tokens + of_first
        return float(total)

    def rate(self, *, tokens: int, device: str, precision: str) -> float:
        """Operations a second of the layers' products alone, for so many tokens at once, on this process's threads."""
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        return _rate(self._shapes, tokens, device, dtype, torch.get_num_threads())


@cache
def _rate(shapes: tuple[Shape, ...], tokens: int, device: str, dtype: torch.dtype, threads: int) -> float:
    """Measured once in a process: all shapes by turns, on random numbers, as a processor may be quick with zeros."""
    made = torch.Generator(device).manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, device=device, dtype=dtype)

    states = {rows: some(tokens, rows) for rows, _ in shapes}
    weights = {shape: some(*reversed(shape)) for shape in shapes}
    done = 0.0
    with torch.inference_mode():
        for _ in range(2):
            began, rounds = _now(device), 0
            while rounds == 0 or _now(device) - began < SECONDS:
                for shape in shapes:
                    functional.linear(states[shape[0]], weights[shape])
                rounds += 1
            done = rounds / (_now(device) - began)
    return done * sum(2.0 * tokens * rows * columns for rows, columns in shapes)


def _now(device: str) -> float:
    """Seconds; of a processor those that this thread had: what other programs took of it belongs to no floor."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()
