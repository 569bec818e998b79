"""Checkpoints of a training: weights and optimizer moments as safetensors, and the training state as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sparring.components.compute.gather import of_first, of_workers, rank, wait_for_workers, workers
from sparring.components.files import drop, read_json, replacing, write_json
from sparring.components.training import master_weights, sharding
from sparring.components.training.state import TrainingState

Tensors = dict[str, Tensor]

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


def newest(folder: Path) -> Path | None:
    """Return the newest finished checkpoint that the first worker sees. Return None if there is none.

    All workers must resume from the same checkpoint. If a worker does not see it, every worker raises RuntimeError.
    """
    updates = _by_update(folder, "update")
    update = of_first(_update_of(updates[0]) if updates else 0)
    if not update:
        return None
    checkpoint = _path(folder, "update", update)
    sees = sum(of_workers(checkpoint.exists()))
    if sees < workers():
        raise RuntimeError(
            f"{checkpoint}: the first worker resumes from this checkpoint, but {workers() - sees} of {workers()} "
            "workers cannot see it. Put the store on a file system that all nodes share."
        )
    return checkpoint


def save(folder: Path, objective: nn.Module, optimizer: Any, state: TrainingState) -> None:
    """Write a checkpoint and drop all but the newest two. Every worker must call this. The first worker writes."""
    weights, moments = whole_weights(objective), whole_moments(optimizer)
    if rank() == 0:
        write(_path(folder, "update", state.update), weights, moments, state)
        _drop_old(folder, state)
    wait_for_workers()


def save_best(folder: Path, objective: nn.Module, state: TrainingState) -> None:
    """Write the weights of the best validation so far, and drop weights that no state names.

    Every worker must call this. The first worker writes.
    """
    weights = whole_weights(objective)
    if rank() == 0:
        write(best(folder, state), weights, None, state)
        _drop_old(folder, state)


def best(folder: Path, state: TrainingState) -> Path:
    """Return the folder where the first worker wrote the best weights. Only its node is sure to see the folder."""
    assert state.best is not None
    return _path(folder, "best", state.best.update)


def _path(folder: Path, kind: str, update: int) -> Path:
    return folder / f"{kind}-{update:06d}"


def _update_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def _by_update(folder: Path, kind: str) -> list[Path]:
    """List finished checkpoints of a kind, newest first.

    They are sorted by number, because names with a million updates or more are longer and sort differently.
    """
    return sorted(folder.glob(f"{kind}-[0-9]*"), key=_update_of, reverse=True)


def _drop_old(folder: Path, state: TrainingState) -> None:
    """Drop all checkpoints except the newest two, and all best weights that no remaining state names."""
    updates = _by_update(folder, "update")
    kept, old = updates[:2], updates[2:]
    named = {best(folder, saved) for saved in [state, *map(_read_state, kept)] if saved.best is not None}
    for path in [*old, *(path for path in _by_update(folder, "best") if path not in named)]:
        drop(path)


def write(folder: Path, weights: Tensors, moments: Tensors | None, state: TrainingState) -> None:
    """Write a checkpoint atomically. If `moments` is None, write only weights and state."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as temporary:
        temporary.mkdir()
        save_file({name: value.cpu().contiguous() for name, value in weights.items()}, temporary / WEIGHTS)
        if moments is not None:
            write_moments(moments, temporary)
        write_json(temporary / STATE, state.to_json())


def whole_weights(objective: nn.Module) -> Tensors:
    """Return weights by name, each tensor once.

    If the objective is sharded, only the first worker gets the weights, but every worker must call this.
    """
    return {name: sharding.at_first(value) for name, value in _once(objective).items()}


def whole_moments(optimizer: Any) -> Tensors:
    """Return an optimizer's moments by number and name.

    If the objective is sharded, only the first worker gets them, but every worker must call this.
    """
    parameters = _updated(optimizer)
    return {
        f"{i}/{key}": sharding.at_first(sharding.sharded_as(value.detach(), parameters[i], key))
        for i, moments in optimizer.state_dict()["state"].items()
        for key, value in moments.items()
    }


def _updated(optimizer: Any) -> list[Tensor]:
    return [sharding.parameter_of(parameter) for group in optimizer.param_groups for parameter in group["params"]]


def write_moments(moments: Tensors, folder: Path) -> None:
    """Write an optimizer's moments."""
    save_file({name: value.detach().cpu().contiguous() for name, value in moments.items()}, folder / OPTIMIZER)


def load(checkpoint: Path, objective: nn.Module, optimizer: Any, device: torch.device) -> TrainingState:
    """Load a checkpoint into the objective and the optimizer, and return its state."""
    read_weights(objective, checkpoint, device)
    read_optimizer(optimizer, checkpoint)
    return _read_state(checkpoint)


def _read_state(checkpoint: Path) -> TrainingState:
    return TrainingState.from_json(read_json(checkpoint / STATE))


def read_optimizer(optimizer: Any, folder: Path) -> None:
    """Load the moments that `write_moments` wrote. The optimizer keeps its learning rate."""
    states: dict[int, dict[str, Tensor]] = {}
    parameters = _updated(optimizer)
    for name, value in load_file(folder / OPTIMIZER).items():
        index, _, key = name.partition("/")
        states.setdefault(int(index), {})[key] = sharding.own_part(value, parameters[int(index)], key)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def read_weights(objective: nn.Module, folder: Path, device: torch.device) -> None:
    """Load the weights that `write` wrote."""
    saved, weights = load_file(folder / WEIGHTS, device=str(device)), _once(objective)
    shapes = [{name: value.shape for name, value in tensors.items()} for tensors in (saved, weights)]
    if shapes[0] != shapes[1]:
        odd = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
        raise ValueError(
            f"{folder}: these weights belong to a different model. Names or shapes differ for {', '.join(odd[:5])}."
        )
    for name, value in weights.items():  # a tensor with several names is saved under the first
        sharding.fill(value, saved[name])
    master_weights.round_weights(objective)


def _once(objective: nn.Module) -> dict[str, Tensor]:
    """Return trained weights by name, each tensor once.

    A tensor may have several names: towers may share embeddings, a generator may share input and output embeddings, and
    T5's encoder has two names for its embeddings. Frozen weights are omitted: the start model has them.
    """
    names: dict[Any, str] = {}
    frozen = {
        name for name, parameter in objective.named_parameters(remove_duplicate=False) if not parameter.requires_grad
    }
    weights = {name: value for name, value in objective.state_dict(keep_vars=True).items() if name not in frozen}
    first = {name: names.setdefault(_place(value), name) for name, value in weights.items()}
    return {name: master_weights.master(value).detach() for name, value in weights.items() if first[name] == name}


def _place(value: Tensor) -> Any:
    """Return a key that identifies a weight's memory.

    A worker may have no row of a sharded weight. All such weights share empty memory, so their key is their identity.
    """
    return id(value) if sharding.is_sharded(value) else (value.data_ptr(), value.shape)
