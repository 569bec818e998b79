"""Write a model between a start model and the model that a training made of it."""

from pathlib import Path
from typing import Any

from sparring.components.files import replacing
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description


@Description(part="training")
def average(out: Path, machine: Machine, *, start: Path, trained: Path, weight: float) -> dict[str, Any]:
    """Write the model to `out/model`. `weight` is the share of `trained` in every weight."""
    from sparring.components.models.average import average_weights  # imports torch

    with replacing(out / "model") as folder:
        return {"parameters": average_weights(start / "model", trained / "model", folder, weight)}
