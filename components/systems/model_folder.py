"""The folder of a trained model, copied for other tools: an adapter merged into its base, or apart."""

import shutil
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.files import read_json, write_json
from sparring.components.models.configs import BASE, Base, locate_model


def copy(model: Path, to: Path, *, adapters: bool = False) -> None:
    """Copy a model's folder. An adapter is merged into a copy of its base, so that the folder needs nothing else; with
    `adapters` it stays apart, for peft. UserError where the latter cannot be, Damaged where a file is cut or lost."""
    from sparring.components.models import saved

    saved.check(model)
    bases = sorted(model.rglob(BASE))
    if not bases:
        shutil.copytree(model, to)
    elif adapters:
        if read_json(model / MODEL_CONFIG).get("pooling") == "maxsim":  # no config.json of theirs has its one score
            raise UserError(
                "--adapters: pooling: maxsim: sentence-transformers does not read it beside an adapter; "
                "accepted: without --adapters, which merges"
            )
        shutil.copytree(model, to)
        for file in bases:
            _name_base(to / file.relative_to(model).parent)
    else:
        _merge(model, to)


def _name_base(folder: Path) -> None:
    """Say in peft's config where the base is on this machine."""
    base = Base.model_validate_json((folder / BASE).read_text())
    for key, as_it_is in {"layers": None, "weights": "pretrained", "attention": None}.items():
        if (value := getattr(base, key)) != as_it_is:
            raise UserError(
                f"--adapters: the adapter's base has {key}: {value}, and peft would read another from "
                f"{base.model}; accepted: without --adapters, which merges"
            )
    located = locate_model(base.model)
    name = str(Path(located) / base.folder) if Path(located).is_dir() else located
    path = folder / "adapter_config.json"
    write_json(path, {**read_json(path), "base_model_name_or_path": name})


def _merge(folder: Path, to: Path) -> None:
    from sparring.components.models import adapters
    from sparring.components.models.cross_encoder import CrossEncoder
    from sparring.components.models.generator import Generator
    from sparring.components.retrieval import kind

    name = read_json(folder / MODEL_CONFIG)["kind"]
    classes: dict[str, Any] = {"cross_encoder": CrossEncoder, "generator": Generator}
    model: Any = (classes[name] if name in classes else kind.kind_named(name).model()).load(folder)
    adapters.merge(model)
    model.config = model.config.model_copy(update={"adapter": None})
    model.save(to, folder)
