"""Averages of the weights of two models."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sparring.components.config import UserError


def average_weights(start: Path, trained: Path, to: Path, weight: float) -> int:
    """Write a model between two saved ones to the empty folder `to`, and return the number of its weights.

    Each weight is (1 - `weight`) times that of `start` plus `weight` times that of `trained`, as in WiSE-FT (Wortsman
    et al., 2022, Eq. 1). All other files are those of `trained`. UserError if the models have other parts.
    """
    shutil.copytree(trained, to, dirs_exist_ok=True)
    count = 0
    for path in sorted(to.rglob("*.safetensors")):
        before = start / path.relative_to(to)
        first, second = load_file(before) if before.exists() else {}, load_file(path)
        if {name: value.shape for name, value in first.items()} != {
            name: value.shape for name, value in second.items()
        }:
            raise UserError(
                f"average: {path.name} of the trained model has other weights than that of its start model, as with an "
                "adapter. Leave `average` out.",
                key="average",
                code="other-weights",
            )
        mixed = {name: torch.lerp(first[name].float(), value.float(), weight) for name, value in second.items()}
        save_file({name: value.to(second[name].dtype) for name, value in mixed.items()}, path, {"format": "pt"})
        count += sum(value.numel() for value in mixed.values())
    return count
