"""Sharded training (FSDP2) of a model that is larger than one accelerator: each worker holds a part of every layer.

A worker gathers a layer right before it is used. Afterwards it keeps only its own rows of the layer, the gradient and
the moments (Zhao et al., 2023). Modules outside of lists of layers (token embeddings, heads, projections) are whole on
every worker. Gradients of sharded and whole parameters are sums over the workers. The optimizer works on a worker's
rows as ordinary tensors, and checkpoints hold whole tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from sparring.components.compute.gather import rank, sum_over_workers, workers
from sparring.components.config import UserError
from sparring.components.models import adapters
from sparring.components.models.layers import outermost_lists
from sparring.components.training.objective import Objective


def shard(objective: Objective, device: torch.device, *, gathered: torch.dtype | None = None) -> None:
    """Keep only this worker's part of each layer. With one worker, nothing changes.

    `gathered` is the precision in which matrices are gathered. Their parts and the sums of gradients stay in fp32, and
    biases and norms stay whole. If None, everything is gathered in its own precision.
    """
    if workers() == 1:
        return
    if not objective.shards:
        name = type(objective).__module__.rpartition(".")[2]
        raise UserError(
            f"cluster: train: shard: the objective {name} divides batches itself and cannot be sharded. Set `shard` to "
            "false."
        )
    mesh = init_device_mesh(device.type, (workers(),))
    summed = None if gathered is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=summed, cast_forward_inputs=False)
    for layer in layers(objective):
        # Each layer is an FSDP root, and by default a root keeps its gathered parameters after the forward pass.
        few = {p for p in layer.parameters() if p.ndim < 2} if gathered is not None else None
        sharded: Any = fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=few)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    adapters.release(objective, is_sharded)


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders, each once. Layers are the members of the outermost module lists."""
    layers_by_id = {id(layer): layer for _, _, outermost in outermost_lists(module) for layer in outermost}
    return list(layers_by_id.values())


def is_sharded(tensor: Tensor) -> bool:
    """Return True if this worker has only a part of the tensor."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor from the parts of all workers. All workers must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def at_first(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor in the first worker's CPU memory. The remaining workers get an empty tensor.

    A tensor that is not sharded is returned unchanged. All workers must call this.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if rank() == 0 else full.new_empty(0)


def sharded_as(part: Tensor, parameter: Tensor, key: str) -> Tensor:
    """Make the optimizer's value for a parameter and key a sharded tensor, if the parameter is sharded."""
    if not isinstance(parameter, DTensor) or not _in_rows(part, parameter, key):
        return part
    whole = torch.empty((parameter.shape[0], *part.shape[1:]), device="meta")
    return DTensor.from_local(
        part, parameter.device_mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def own_part(tensor: Tensor, parameter: Tensor, key: str = "") -> Tensor:
    """Return this worker's part of a whole tensor.

    The tensor is the value of a parameter, or the optimizer's value for the parameter under a key.
    """
    if not isinstance(parameter, DTensor) or not _in_rows(tensor, parameter, key):
        return tensor
    rows = -(-parameter.shape[0] // workers())
    return tensor[rank() * rows : (rank() + 1) * rows]


def _in_rows(tensor: Tensor, parameter: Tensor, key: str) -> bool:
    """Return True if an optimizer's tensor has a row for each row of its sharded parameter.

    Step counts, and Adafactor's means over all rows of a matrix, do not.
    """
    return tensor.ndim > 0 and not (key == "col_var" and parameter.ndim == 2)


@torch.no_grad()
def fill(parameter: Tensor, tensor: Tensor) -> None:
    """Copy a whole tensor into a weight. If the weight is sharded, copy this worker's part."""
    target = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    target.copy_(own_part(tensor, parameter))


class Part(nn.Parameter):
    """The rows of a sharded parameter that this worker updates. They share the parameter's memory."""

    whole: DTensor


def updated(parameter: Tensor) -> Tensor:
    """Return the tensor that the optimizer updates for a parameter: the parameter, or this worker's part of it."""
    if not isinstance(parameter, DTensor):
        return parameter
    part = Part(parameter._local_tensor.detach())
    part.whole = parameter
    return part


def parameter_of(updated: Tensor) -> Tensor:
    """Return the parameter that belongs to an updated tensor. It is the inverse of `updated`."""
    return updated.whole if isinstance(updated, Part) else updated


def pass_gradients(optimizer: Any) -> None:
    """Set the gradients of this worker's parts from those of the sharded parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, Part):
                gradient: Any = parameter.whole.grad
                parameter.grad = None if gradient is None else gradient._local_tensor


def clip(parameters: list[Tensor], limit: float) -> Tensor:
    """Scale the gradient down to at most the norm `limit`. Return the norm before, over the parts of all workers."""
    sharded: list[Any] = [p for p in parameters if is_sharded(p)]
    if not sharded:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    parts = [p.grad._local_tensor for p in sharded if p.grad is not None]
    rest = [p.grad for p in parameters if not is_sharded(p) and p.grad is not None]
    squares = [
        torch.stack([g.norm().double().square() for g in gradients]).sum()
        if gradients
        else torch.zeros((), dtype=torch.float64, device=parameters[0].device)
        for gradients in (parts, rest)
    ]
    norm = (sum_over_workers(squares[0]) + squares[1]).sqrt()
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for gradient in (*parts, *rest):
        gradient.mul_(factor.to(gradient.dtype))
    return norm.float()


@torch.no_grad()
def join(objective: nn.Module) -> None:
    """Replace sharded parameters by whole ones in the first worker's memory, at the end of training.

    All workers must call this. Afterwards only the first worker can use the objective.
    """
    joined: dict[int, nn.Parameter] = {}
    for module in objective.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and is_sharded(parameter):
                if id(parameter) not in joined:
                    joined[id(parameter)] = nn.Parameter(at_first(parameter), parameter.requires_grad)
                module._parameters[name] = joined[id(parameter)]
