"""Weights in bf16 of which the optimizer keeps its own in fp32, the masters (Micikevicius et al., 2018, section 3.1).

A pass reads matrices of layers and token embeddings of 2 bytes a number, so its states are of 2 bytes too. A bf16
weight has 8 bits: what an update changes is mostly less than the last of them, and would be lost. So the optimizer
updates the master, and the weight is the master rounded. Biases and norms, and what stands outside of the layers
(heads, projections), are few numbers, and stay in fp32.

Where each worker has a part of a layer (`components.training.sharding`), the part is of the master, and the layer is
gathered in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparring.components.training import sharding


class Master(nn.Parameter):
    """A weight in fp32, which the optimizer updates if it is trained. Its gradient is the sum of the weight's own."""


def keep(objective: nn.Module) -> None:
    """Round the matrices of layers and embeddings to bf16, and keep beside what they were in fp32; of what is frozen
    too, which is saved. What is sharded stays as it is."""
    embeddings = [module for module in objective.modules() if isinstance(module, nn.Embedding)]
    for module in [*sharding.layers(objective), *embeddings]:
        for weight in module.parameters():
            if weight.ndim >= 2 and weight.dtype == torch.float32 and not sharding.is_sharded(weight):
                kept: Any = weight
                kept.master = Master(weight.detach().clone(), weight.requires_grad)
                weight.data = weight.data.bfloat16()


def master(weight: Tensor) -> Tensor:
    """Return the master of a weight, or the weight itself if it has none."""
    kept: Tensor = getattr(weight, "master", weight)
    return kept


def _with_masters(objective: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    pairs = [(weight, master(weight)) for weight in objective.parameters()]
    return [(weight, kept) for weight, kept in pairs if kept is not weight]


def take_gradients(objective: nn.Module) -> None:
    """Add each weight's gradient to its master's, and drop it."""
    for weight, kept in _with_masters(objective):
        if weight.grad is not None:
            gradient = weight.grad.float()
            kept.grad = gradient if kept.grad is None else kept.grad.add_(gradient)
            weight.grad = None


@torch.no_grad()
def round_weights(objective: nn.Module) -> None:
    """Make each weight its master rounded, after the masters have changed; drop their gradients."""
    for weight, kept in _with_masters(objective):
        weight.copy_(kept)
        kept.grad = None


def put_back(objective: nn.Module) -> None:
    """Make each weight its master, at the end of a training."""
    for weight, kept in _with_masters(objective):
        weight.data = kept.detach()
        del weight.master  # type: ignore[attr-defined]
