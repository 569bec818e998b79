"""Loading of pre-trained models with adapters. A model with an adapter has a frozen base."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.models import adapters
from sparring.components.models.configs import Adaptable, Base, Pretrained, locate_model
from sparring.components.models.seeding import seeded

Read = Callable[[Any, str], Any]
"""Function that reads a pre-trained model from its source and a folder inside the source."""


def adapted(read: Read, source: Pretrained, folder: str, *, head: bool = False) -> Any:
    """Read a model with `read`. If `source` requests an adapter, freeze the model and add a new adapter.

    If the folder has an adapter, read it with its base. If `source` then requests no adapter, merge it into the base.
    Raise UserError if `source` requests a different adapter than the folder has.
    """
    wanted = source.adapter if isinstance(source, Adaptable) else None
    place = Path(locate_model(source.model)) / folder
    if (saved := adapters.read_base(place)) is None:
        model = read(source, folder)
        if wanted is not None:
            settings = source.model_dump(
                include={"model", "revision", "layers", "dropout", "weights", "seed", "attention", "adapter"}
            )
            base = adapters.identified(Base(**settings, folder=folder), getattr(model.config, "_commit_hash", None))
            with seeded(base.seed):
                adapters.add(model, base, head=head)
        return model
    if wanted not in (None, saved.adapter):
        raise UserError(
            f"adapter: {source.model} already has a different adapter, {saved.adapter!r}. Use this one, or null."
        )
    model = _over_base(read, saved.model_copy(update={"dropout": source.dropout}), place, head=head)
    adapters.load(model, place)
    if wanted is None:
        adapters.merge(model)
        for weight in model.parameters():  # these may be trained, and must not be shared as a base
            weight.data = weight.data.clone()
    return model


def saved(read: Read, folder: Path, *, head: bool = False) -> Any:
    """Load a model with an adapter that `save_tower` wrote. Return None if the folder has no adapter."""
    base = adapters.read_base(folder)
    if base is None:
        return None
    model = _over_base(read, base, folder, head=head)
    adapters.load(model, folder)
    return model


def _over_base(read: Read, base: Base, place: Path, *, head: bool) -> Any:
    """Read a base and add an untrained adapter. The files of the base must be unchanged."""
    adapters.check(base, place)
    model = read(base, base.folder)
    adapters.add(model, base, head=head)
    return model
