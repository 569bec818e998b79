"""Low-rank adapters (LoRA, Hu et al., 2022) over a frozen model, made by peft.

A process holds the frozen weights once, for any number of adapters over them. Only trained weights are saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sparring.components.config import UserError, listing
from sparring.components.digests import sha256
from sparring.components.files import read_json, write_json
from sparring.components.models.configs import BASE, Adapter, Base, locate_model

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""Names of peft's files."""
_NAME, _PREFIX = "default", "base_model.model."
"""peft's name of an adapter, and its prefix of weight names."""
_FACTOR = ".lora_"
"""Part of the names of A and B."""
_KINDS = (".safetensors", ".bin")


class Body:
    """The weights of a frozen model by name, on one device and in one precision."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def __deepcopy__(self, memo: Any) -> Body:
        return self


_bodies: WeakValueDictionary[tuple[Any, ...], Body] = WeakValueDictionary()
"""Frozen weights that models of this process share, by `_key`."""


def identified(base: Base, commit: str | None) -> Base:
    """Add the identity of a base's weights to its config: the digests of their files, or the hub's commit."""
    if base.weights == "random":
        return base
    files = {name: sha256(path) for name, path in base.files().items() if path.suffix in _KINDS}
    digests = {name.removeprefix(f"{base.model}/"): code for name, code in files.items()}
    return base.model_copy(update={"sha256": digests} if digests else {"revision": commit or base.revision})


def check(base: Base, place: Path) -> None:
    """Raise UserError if the files of a base differ from those that its adapter was trained over."""
    for name, expected in base.sha256.items():
        path = Path(locate_model(base.model)) / name
        if not path.is_file():
            raise UserError(f"{place}: {name} of the adapter's base {base.model} is gone. Restore the file.")
        if sha256(path) != expected:
            raise UserError(
                f"{place}: {name} of the adapter's base {base.model} has changed since the adapter was trained. "
                "Restore the old file, or train the adapter again."
            )


def add(model: Any, base: Base, *, head: bool) -> None:
    """Freeze a Hugging Face model and add a new adapter. Raise UserError if it lacks a requested layer.

    With `head`, the modules after its layers are trained as a whole. The adapter's product is 0 before training, so the
    model's output stays the same.
    """
    from peft import inject_adapter_in_model

    assert base.adapter is not None
    config = _peft_config(base.adapter, _targets(model, base))
    inject_adapter_in_model(config, model)
    model.adapter_base, model.has_trained_head = base, head
    for weight in _own(model).values():
        weight.requires_grad_(True)
    key = _key(base, torch.device("cpu"), torch.float32)
    held = _bodies.get(key)
    if held is None:
        held = _bodies[key] = Body({name: weight.data for name, weight in _frozen(model)})
    model.body = held
    _stand_on(model)


def has_adapter(model: Any) -> bool:
    """Return True if a Hugging Face model has an adapter."""
    return isinstance(getattr(model, "body", None), Body)


def has_adapted_layers(model: Any) -> bool:
    """Return True if a layer in any part of a model has an adapter."""
    return any(_FACTOR in name for name, _ in model.named_parameters())


def share(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Move the frozen weights under a model's adapters to a device and a precision.

    Models of this process with the same base share the moved weights.
    """
    for part in [module for module in model.modules() if has_adapter(module)]:
        key = _key(part.adapter_base, device, dtype)
        moved = _bodies.get(key)
        if moved is None:
            weights = {name: weight.to(device, dtype) for name, weight in part.body.weights.items()}
            moved = _bodies[key] = Body(weights)
        part.body = moved
        _stand_on(part)


def release(model: Any, is_elsewhere: Callable[[Tensor], bool]) -> None:
    """Release the shared copies of frozen weights that `is_elsewhere` reports as moved, for example by sharding."""
    for part in [module for module in model.modules() if has_adapter(module)]:
        part.body = Body({name: weight.data for name, weight in _frozen(part) if not is_elsewhere(weight)})


def merge(model: Any) -> None:
    """Merge each adapter into its base: add its product to copies of the weights, which other models may share.

    Outputs stay the same except for rounding, and are as fast as without an adapter.
    """
    for part in [module for module in model.modules() if has_adapter(module)]:
        from peft.tuners.tuners_utils import BaseTunerLayer  # heavy

        for name, layer in list(part.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                parent, _, last = name.rpartition(".")
                setattr(part.get_submodule(parent), last, _merged(layer))
        # Remove all traces of peft, so that transformers saves it as an ordinary model.
        for attribute in ("body", "adapter_base", "has_trained_head", "peft_config"):
            with suppress(AttributeError):
                delattr(part, attribute)
        part.requires_grad_(True)


def copied(model: Any) -> Any:
    """Copy a Hugging Face model. A model with an adapter shares its frozen weights with the copy."""
    frozen = _frozen(model) if has_adapter(model) else []
    return copy.deepcopy(model, {id(weight): nn.Parameter(weight.data, requires_grad=False) for _, weight in frozen})


def save(model: Any, folder: Path) -> None:
    """Write an adapter and its model's head. This project and peft's `PeftModel.from_pretrained` load them."""
    base: Base = model.adapter_base
    tensors = {_saved_name(name): weight.detach().cpu().contiguous() for name, weight in _own(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    assert base.adapter is not None
    config = _peft_config(base.adapter, _targets_of(model))
    heads = [name for name, _ in _heads(model)] if model.has_trained_head else []
    stated = config.to_dict() | {
        "base_model_name_or_path": base.model,
        "revision": base.revision,
        "inference_mode": True,
        "task_type": "SEQ_CLS" if heads else "FEATURE_EXTRACTION",
        "modules_to_save": heads or None,
    }
    write_json(folder / CONFIG, {key: sorted(v) if isinstance(v, set) else v for key, v in stated.items()})
    (folder / BASE).write_text(base.model_dump_json(indent=1) + "\n")


def load(model: Any, folder: Path) -> None:
    """Load the weights that `save` wrote into a model with an adapter of the same shape.

    A classifier also accepts the weights of an encoder, and then keeps its head.
    """
    weights = load_file(folder / WEIGHTS)
    factors = [name for name, _ in model.base_model.named_parameters() if _FACTOR in name]
    for part, names_here in ((model, list(_own(model))), (model.base_model, factors)):
        names = {_saved_name(name): name for name in names_here}
        if weights.keys() == names.keys():
            part.load_state_dict({names[name]: value for name, value in weights.items()}, strict=False)
            return
    odd = sorted(weights.keys() ^ {_saved_name(name) for name in _own(model)})
    raise ValueError(f"{folder}: this adapter belongs to a different model. Weights differ: {', '.join(odd[:5])}.")


def read_base(folder: Path) -> Base | None:
    """Read the base of the adapter in a folder. Return None if there is no adapter."""
    file = folder / BASE
    return Base.model_validate(read_json(file)) if file.is_file() else None


def _key(base: Base, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the key of a base's frozen weights. Models with equal keys share the weights."""
    layers = tuple(base.layers) if isinstance(base.layers, list) else base.layers
    drawn = base.seed if base.weights == "random" else None
    same = (locate_model(base.model), base.revision, base.folder, layers, drawn, tuple(sorted(base.sha256.items())))
    return (*same, str(device), dtype)


def _peft_config(adapter: Adapter, targets: list[str]) -> Any:
    from peft import LoraConfig

    options: dict[str, Any] = {"lora_alpha": adapter.alpha, "lora_dropout": adapter.dropout}
    return LoraConfig(r=adapter.rank, target_modules=targets, **options)


def _targets(model: Any, base: Base) -> list[str]:
    """Return the names of the linear layers in the model's list of layers that get an adapter."""
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and any(name.startswith(f"{prefix}.") for prefix in lists)
    ]
    assert base.adapter is not None
    targets, kinds = base.adapter.targets, {name.rpartition(".")[2] for name in linear}
    if not linear:
        raise UserError(
            f"adapter: {base.model} has no linear layers that an adapter could be added to. Use `adapter: null`."
        )
    for target in targets or ():
        if target not in kinds:
            raise UserError(
                f"adapter.targets: {base.model} has no linear layers {target!r}. Use some of these: "
                f"{listing(sorted(kinds))}."
            )
    return [name for name in linear if targets is None or name.rpartition(".")[2] in targets]


def _targets_of(model: Any) -> list[str]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]


def _heads(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a classifier after its layers, by name: its head, and the pooler inside BERT's encoder."""
    for name, module in model.named_children():
        if module is not model.base_model and model.base_model is not model and any(True for _ in module.parameters()):
            yield name, module
    pooler = getattr(model.base_model, "pooler", None)
    if isinstance(pooler, nn.Module):
        yield "pooler", pooler


def _frozen(model: Any) -> list[tuple[str, nn.Parameter]]:
    """Return the frozen weights under an adapter, with their names before the adapter was added."""
    trained = set(map(id, _own(model).values()))
    return [
        (name.replace(".base_layer.", "."), weight)
        for name, weight in model.base_model.named_parameters()
        if id(weight) not in trained
    ]


def _own(model: Any) -> dict[str, nn.Parameter]:
    """Return the trained weights by name: the adapter's factors, and the head if it is trained."""
    heads = [weight for _, module in _heads(model) for weight in module.parameters()] if model.has_trained_head else []
    head = set(map(id, heads))
    return {name: weight for name, weight in model.named_parameters() if _FACTOR in name or id(weight) in head}


def _saved_name(name: str) -> str:
    """Return peft's name for a weight in a file."""
    return _PREFIX + name.replace(f".{_NAME}.", ".")


def _stand_on(model: Any) -> None:
    """Point the model's frozen parameters to the shared weights in its body.

    Each model has its own parameters over the same memory, so moving a model does not move the rest.
    """
    for name, weight in _frozen(model):
        weight.data = model.body.weights.get(name, weight.data)


def _merged(layer: Any) -> nn.Linear:
    """Return a linear layer with the product of its adapter added to its weights, in fp32."""
    base = layer.get_base_layer()
    linear = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
    weight = base.weight.detach().float() + layer.get_delta_weight(_NAME).detach().float()
    linear.weight = nn.Parameter(weight.to(base.weight.dtype))
    linear.bias = base.bias
    return linear
