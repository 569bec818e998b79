"""Checkpoints of a training: weights and the optimizer's moments as safetensors, and where it stands as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from components.compute.gather import rank, workers
from components.files import replacing, write_json
from components.training.state import TrainingState

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"


def finished(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted(folder.glob("update-[0-9]*"), reverse=True)


def save(folder: Path, objective: nn.Module, optimizer: Any, state: TrainingState) -> None:
    """Write a checkpoint by the first worker, and drop all but the newest two."""
    if rank() == 0:
        write(folder / f"update-{state.update:06d}", objective, optimizer, state)
        for old in finished(folder)[2:]:
            shutil.rmtree(old, ignore_errors=True)
    if workers() > 1:
        dist.barrier()


def write(folder: Path, objective: nn.Module, optimizer: Any, state: TrainingState) -> None:
    """Write a directory that appears whole or not at all; without an optimizer only weights and state."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as temporary:
        temporary.mkdir()
        save_file({name: value.cpu().contiguous() for name, value in _once(objective).items()}, temporary / WEIGHTS)
        if optimizer is not None:
            write_optimizer(optimizer, temporary)
        write_json(temporary / "state.json", state.to_json())


def write_optimizer(optimizer: Any, folder: Path) -> None:
    """Write an optimizer's moments."""
    states = optimizer.state_dict()["state"]
    tensors = {f"{i}/{key}": value.detach().cpu().contiguous() for i, s in states.items() for key, value in s.items()}
    save_file(tensors, folder / OPTIMIZER)


def load(folder: Path, objective: nn.Module, optimizer: Any, device: torch.device) -> TrainingState | None:
    """Load the newest checkpoint, if there is one; its state."""
    for checkpoint in finished(folder):
        read_weights(objective, checkpoint, device)
        read_optimizer(optimizer, checkpoint)
        return TrainingState.from_json(json.loads((checkpoint / "state.json").read_text()))
    return None


def read_optimizer(optimizer: Any, folder: Path) -> None:
    """Load the moments that `write_optimizer` wrote; the learning rate stays the optimizer's own."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in load_file(folder / OPTIMIZER).items():
        index, _, key = name.partition("/")
        states.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def read_weights(objective: nn.Module, folder: Path, device: torch.device) -> None:
    """Load the weights that `write` wrote."""
    found = load_file(folder / WEIGHTS, device=str(device))
    if found.keys() != _once(objective).keys():
        odd = sorted(found.keys() ^ _once(objective).keys())
        raise ValueError(f"{folder}: these weights are of another model: {', '.join(odd[:5])}")
    objective.load_state_dict(found, strict=False)  # what stands under several names is there under the first


def _once(objective: nn.Module) -> dict[str, Tensor]:
    """Weights by name, each once: towers may share their embeddings, a generator its input's and output's, and T5's
    encoder has two names for its own."""
    found: dict[tuple[int, torch.Size], str] = {}
    weights = {name: value.detach() for name, value in objective.state_dict().items()}
    first = {name: found.setdefault((value.data_ptr(), value.shape), name) for name, value in weights.items()}
    return {name: value for name, value in weights.items() if first[name] == name}
