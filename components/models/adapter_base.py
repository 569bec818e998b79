"""Models over a base: a pre-trained one that is frozen under an adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.models import adapters
from sparring.components.models.configs import Adaptable, Base, Pretrained, locate_model
from sparring.components.models.seeding import seeded

Read = Callable[[Any, str], Any]
"""Reads a pre-trained model from what names it and the folder inside that."""


def adapted(read: Read, source: Pretrained, folder: str, *, head: bool = False) -> Any:
    """Read a model with `read`, frozen under a new adapter if `source` requests an adapter.

    An adapter in the folder is read with its base. It is merged into the base if `source` requests none.
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
        raise UserError(f"adapter: {source.model} has another one, {saved.adapter!r}; accepted: that one, or null")
    model = _over_base(read, saved.model_copy(update={"dropout": source.dropout}), place, head=head)
    adapters.load(model, place)
    if wanted is None:
        adapters.merge(model)
        for weight in model.parameters():  # it may be trained, and must not be others' base
            weight.data = weight.data.clone()
    return model


def saved(read: Read, folder: Path, *, head: bool = False) -> Any:
    """Load a model with an adapter that `save_tower` wrote, or return None if the folder has no adapter."""
    base = adapters.read_base(folder)
    if base is None:
        return None
    model = _over_base(read, base, folder, head=head)
    adapters.load(model, folder)
    return model


def _over_base(read: Read, base: Base, place: Path, *, head: bool) -> Any:
    """Put an adapter without trained weights over a base, whose files must be unchanged."""
    adapters.check(base, place)
    model = read(base, base.folder)
    adapters.add(model, base, head=head)
    return model
