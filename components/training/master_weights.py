"""Weights in bf16 with fp32 master weights for the optimizer (Micikevicius et al., 2018, section 3.1).

Matrices of layers and token embeddings are bf16 in a pass, and so are the states between layers. That halves the
memory. But a bf16 weight has 8 significant bits, and most updates are smaller than the last bit and would be lost. So
the optimizer updates the fp32 master, and the weight is the rounded master. Biases, norms, and modules outside of the
layers (heads, projections) are small and stay in fp32.

If layers are sharded (`components.training.sharding`), a worker's part is a part of the master, and layers are gathered
in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparring.components.training import sharding


class Master(nn.Parameter):
    """An fp32 master weight. The optimizer updates it if it is trained. Its gradient sums those of the bf16 weight."""


def keep(objective: nn.Module) -> None:
    """Round the matrices of layers and embeddings to bf16, and keep their fp32 values as masters.

    Frozen weights have masters too, because they are saved. Sharded weights stay unchanged.
    """
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
    """Move each weight's gradient to its master, adding it to the master's gradient."""
    for weight in objective.parameters():
        take_gradient(weight)


def take_gradient(weight: Tensor) -> None:
    """Move a weight's gradient to its master, adding it to the master's gradient. Without a master, nothing changes."""
    kept = master(weight)
    if kept is not weight and weight.grad is not None:
        gradient = weight.grad.float()
        kept.grad = gradient if kept.grad is None else kept.grad.add_(gradient)
        weight.grad = None


@torch.no_grad()
def round_weights(objective: nn.Module) -> None:
    """Set each weight to its rounded master, and drop the masters' gradients. Call this when masters have changed."""
    for weight, kept in _with_masters(objective):
        weight.copy_(kept)
        kept.grad = None


def put_back(objective: nn.Module) -> None:
    """Replace each weight by its fp32 master, at the end of training."""
    for weight, kept in _with_masters(objective):
        weight.data = kept.detach()
        del weight.master  # type: ignore[attr-defined]
