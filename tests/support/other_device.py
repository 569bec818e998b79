"""A device that no machine needs to have: tensors on torch's `meta` device that have numbers all the same.

A tensor on it wraps one in the machine's memory, which every operation is computed with. So code runs to its end, also
where it looks at values, and what a GPU would refuse is refused: an operation that takes tensors of both devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
"""What may take tensors of two devices, as on a GPU."""
INDEXING = (
    torch.ops.aten.index,
    torch.ops.aten.index_put_,
    torch.ops.aten._index_put_impl_,
    torch.ops.aten._unsafe_index,
)
"""What takes indices of either device, as on a GPU; its other tensors must be of one."""


class WrongDeviceError(RuntimeError):
    """An operation took tensors of both devices."""


class There(Tensor):
    """A tensor on the other device."""

    inner: Tensor
    """Its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, tensor: Tensor) -> There:
        wrapper: There = Tensor._make_wrapper_subclass(
            cls,
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        wrapper.inner = tensor
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()


class Factories(TorchDispatchMode):
    """Makes tensors there where the device is asked for, and takes those that are sent there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(function, args, kwargs or {})


def computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation's result, on the device where it belongs."""
    target = kwargs.get("device")
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    remote = any(isinstance(tensor, There) for tensor in tensors)
    if remote and function.overloadpacket not in COPIES:
        _refuse_mixed(function, args, kwargs)
    inside = tree_map(lambda value: value.inner if isinstance(value, There) else value, (args, kwargs))
    if target is not None:
        inside[1]["device"] = torch.device("cpu")
    result = function(*inside[0], **inside[1])
    if not (torch.device(target).type == "meta" if target is not None else remote):
        return result
    if function.overloadpacket is torch.ops.aten.copy_ and not isinstance(args[0], There):
        return args[0]
    wrapped = tree_map(
        lambda value: There(value) if isinstance(value, Tensor) and not isinstance(value, There) else value, result
    )
    return return_and_correct_aliasing(function, args, kwargs, wrapped)


def _refuse_mixed(function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    checked = (args[0], args[2:]) if function.overloadpacket in INDEXING else (args, kwargs)
    for value in tree_flatten(checked)[0]:
        if isinstance(value, Tensor) and not isinstance(value, There) and value.ndim > 0:
            raise WrongDeviceError(f"{function}: a tensor of shape {tuple(value.shape)} is in the machine's memory")


@contextmanager
def rehearsed(patch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Inside this block the device is there; what torch has for real devices alone is left out."""
    real = torch.autocast

    def autocast(kind: str, *args: Any, **options: Any) -> Any:
        return nullcontext() if kind == DEVICE.type else real(kind, *args, **options)

    constructor = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        """`torch.tensor` dispatches nothing, and would make a tensor without numbers."""
        return constructor(data, **options).to(device or "cpu")

    patch.setattr(torch, "tensor", tensor)
    patch.setattr(torch, "autocast", autocast)
    patch.setattr(torch.optim, "AdamW", partial(_unfused, torch.optim.AdamW))
    with Factories():
        yield DEVICE


def _unfused(optimizer: Any, *args: Any, fused: bool = False, **options: Any) -> Any:
    return optimizer(*args, foreach=False, **options)
