"""The roofline: the shortest time in which this processor can compute a model's matrix products.

The roofline is the number of operations, divided by the rate that the processor reaches with such products alone. The
remaining time of a step is spent on memory, on computations between the products, and on padding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.compute.linear_products import Rounded, eight_bits
from sparring.components.compute.precision import DTYPES

SECONDS = 0.1
"""Shortest time for which the rate is measured, after a warm-up of the same length."""

Shape = tuple[int, int]


class MatrixProducts:
    """The matrix products of an encoder's layers.

    With `first_only`, only the last state of each text's first token is needed. The last layer then computes keys and
    values for all tokens, and everything else for the first token alone.
    """

    def __init__(self, encoder: Any, *, first_only: bool = False) -> None:
        lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
        linear = {id(part): part for layers in lists for part in layers.modules() if isinstance(part, nn.Linear)}
        self._shapes = tuple((part.in_features, part.out_features) for part in linear.values())
        self._frozen = sum(2.0 * part.weight.numel() for part in linear.values() if not part.weight.requires_grad)
        layers, self._width = encoder.config.num_hidden_layers, encoder.config.hidden_size
        size = getattr(encoder.config, "head_dim", None)  # in Qwen3, all heads together are wider than the states
        self._heads = self._width if size is None else size * encoder.config.num_attention_heads
        per_token = sum(2.0 * rows * columns for rows, columns in self._shapes)
        self._full_layers = layers - 1 if first_only else layers
        self._per_layer, self._keys_and_values = per_token / layers, 4.0 * self._width**2 if first_only else 0.0

    def operations(self, lengths: np.ndarray) -> float:
        """Return the floating-point operations of a forward pass over texts of these lengths, without padding."""
        tokens, squares = lengths.sum(), np.square(lengths, dtype=np.float64).sum()
        total = self._full_layers * (self._per_layer * tokens + 4.0 * self._heads * squares)
        if self._keys_and_values:
            first = (self._per_layer - self._keys_and_values) * len(lengths) + 4.0 * self._heads * tokens
            total += self._keys_and_values * tokens + first
        return float(total)

    def training_operations(self, lengths: np.ndarray) -> float:
        """Return the floating-point operations of a forward and a backward pass, without padding.

        The gradients of a product's two matrices need as many operations each as the product. A frozen weight has no
        gradient.
        """
        return 3 * self.operations(lengths) - self._frozen * float(lengths.sum())

    def rate(self, *, tokens: int, device: str, precision: str) -> float:
        """Return the operations a second of the layers' products alone, for `tokens` tokens and torch's threads."""
        return _rate(self._shapes, tokens, device, precision, torch.get_num_threads())


def head_operations(head: nn.Module, places: int) -> float:
    """Return the floating-point operations of a head's forward pass over states at `places` positions."""
    return 2.0 * places * sum(weight.numel() for weight in head.parameters() if weight.ndim == 2)


@cache
def _rate(shapes: tuple[Shape, ...], tokens: int, device: str, precision: str, threads: int) -> float:
    """Measure the rate once in a process. Use random numbers, because some processors multiply zeros faster."""
    rng = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=device, dtype=DTYPES.get(precision))

    states = {rows: random(tokens, rows) for rows, _ in shapes}
    if precision == "int8":
        states = {rows: eight_bits(some)[0] for rows, some in states.items()}

    def product(rows: int, columns: int) -> Callable[[], Tensor]:
        weight = random(columns, rows)
        if precision == "int8":
            return partial(Rounded(weight, torch.zeros(columns)).product, states[rows])
        return partial(functional.linear, states[rows], weight)

    products = [product(*shape) for shape in shapes]
    rounds_per_second = 0.0
    with torch.inference_mode():
        for _ in range(2):
            start, rounds = _now(device), 0
            while rounds == 0 or _now(device) - start < SECONDS:
                for multiply in products:
                    multiply()
                rounds += 1
            rounds_per_second = rounds / (_now(device) - start)
    return rounds_per_second * sum(2.0 * tokens * rows * columns for rows, columns in shapes)


def _now(device: str) -> float:
    """Return the time in seconds. On a CPU it is this thread's CPU time, so that other programs do not count."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()
