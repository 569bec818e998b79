"""Saving and loading of models: weights, tokenizer, and descriptions for other libraries."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from sparring.components.config import Config, Damaged, parse
from sparring.components.data.tokenizers import MODEL_CONFIG, tokenizer_file
from sparring.components.files import check_whole, naming_damage, read_json, write_json
from sparring.components.models import adapter_base, adapters, bert, pretrained
from sparring.components.models.attention import for_reading
from sparring.components.models.configs import BASE, MODULES, Pretrained

HUGGINGFACE_CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)

C = TypeVar("C", bound=Config)


def _of_folder(load: Callable[..., Any]) -> Callable[..., Any]:
    """Make a loader raise Damaged if a file of the folder is truncated or missing."""

    @functools.wraps(load)
    def loaded(folder: Path, *arguments: Any, **options: Any) -> Any:
        _check_there(folder, HUGGINGFACE_CONFIG, BASE)
        with naming_damage(folder):
            return load(folder, *arguments, **options)

    return loaded


def check(folder: Path) -> None:
    """Raise Damaged if a file of a saved model is truncated or missing."""
    _check_there(folder, MODEL_CONFIG)
    for tower in {tokenizer_file(folder).parent, *(path.parent for path in folder.glob(f"*/{TOKENIZER_FILES[0]}"))}:
        _check_there(tower, TOKENIZER_FILES[0])
        _check_there(tower, HUGGINGFACE_CONFIG, BASE)
        _check_there(tower, "model.safetensors", "model.safetensors.index.json", adapters.WEIGHTS)
    check_whole(folder)


def _check_there(folder: Path, *names: str) -> None:
    """Raise Damaged if a folder has none of these files."""
    if not any((folder / name).is_file() for name in names):
        raise Damaged(f"{folder}: there is no {names[0]}", folder)


def load_config(kind: type[C], folder: Path) -> C:
    """Load the config that `save_modules` wrote."""
    path = folder / MODEL_CONFIG
    return parse(kind, read_json(path), where=str(path))


@_of_folder
def load_encoder(folder: Path, *, frozen: bool = False) -> Any:
    """Load an encoder that `save_tower` wrote. A `frozen` encoder is only used for inference."""
    if frozen and (model := bert.encoder(folder)) is not None:
        return model
    return adapter_base.saved(pretrained.plain_encoder, folder) or for_reading(
        _whole(AutoModel, folder, add_pooling_layer=False)
    )


@_of_folder
def load_classifier(folder: Path, *, frozen: bool = False) -> Any:
    """Load a sequence classifier that `save_tower` wrote. A `frozen` classifier is only used for inference."""
    if frozen and (model := bert.classifier(folder)) is not None:
        return model
    return adapter_base.saved(pretrained.plain_classifier, folder, head=True) or _whole(
        AutoModelForSequenceClassification, folder
    )


@_of_folder
def load_language_model(folder: Path, auto: Any) -> Any:
    """Load a language model that `save_tower` wrote. `auto` is the Hugging Face class to load it with."""
    saved = adapter_base.saved(lambda source, within: pretrained.read(auto, source, within), folder)
    return saved or _whole(auto, folder, unused=".pooler.")  # an encoder with a decoder made from it lacks the pooler


@_of_folder
def load_causal_language_model(folder: Path) -> Any:
    """Load a causal language model that `save_tower` wrote."""
    return adapter_base.saved(pretrained.plain_causal_language_model, folder) or _whole(AutoModelForCausalLM, folder)


@_of_folder
def load_masked_language_model(folder: Path) -> Any:
    """Load a masked language model that `save_tower` wrote."""
    return _whole(AutoModelForMaskedLM, folder)


def _whole(auto: Any, folder: Path, *, unused: str | None = None, **options: Any) -> Any:
    """Load a model that `save_tower` wrote.

    Raise Damaged if weights are missing, which would be random numbers. Weights with `unused` in their names may be
    missing. If None, none may.
    """
    model, report = pretrained.load(auto, str(folder), **options)
    if wrong := sorted(name for name, *_ in report["mismatched_keys"]):
        raise Damaged(f"{folder}: the weights of {wrong[0]} do not match config.json", folder)
    if lacking := sorted(name for name in report["missing_keys"] if unused is None or unused not in name):
        raise Damaged(f"{folder}: the weights of {lacking[0]} are missing", folder)
    return model


def save_tower(model: Any, folder: Path, tokenizer_from: Path, limit: int) -> None:
    """Write a Hugging Face model with its tokenizer. `limit` is the length at which sentence-transformers cuts texts.

    Of a model with an adapter, only the trained weights are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if adapters.has_adapter(model):
        adapters.save(model, folder)
    elif adapters.has_adapted_layers(model):
        raise ValueError(f"{folder}: a part of the model has an adapter, which would be lost. Merge it first.")
    else:
        with suppress(AttributeError):
            del model.config.auto_map  # it names files of code, which this project neither runs nor writes
        model.save_pretrained(str(folder))
    source = tokenizer_file(tokenizer_from).parent
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})


def limit_tokenizer(folder: Path, limit: int) -> None:
    """Set the length in tokens at which a saved tokenizer cuts, for libraries that ask only the tokenizer."""
    path = folder / "tokenizer_config.json"
    write_json(path, {**read_json(path), "model_max_length": limit})


def save_modules(folder: Path, modules: list[tuple[str, str]], description: dict[str, Any], config: Pretrained) -> None:
    """Write a model's config for this project, and its modules and `description` for sentence-transformers.

    `modules` are pairs of folder and class.
    """
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    write_json(folder / MODULES, listed)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, **description})
    (folder / MODEL_CONFIG).write_text(config.model_dump_json(indent=1) + "\n")


def save_weights(module: nn.Module, path: Path, *, prefix: str = "") -> None:
    """Write a module's parameters as safetensors, with `prefix` before each name."""
    tensors = {prefix + name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load_weights(module: nn.Module, path: Path, *, prefix: str = "") -> None:
    """Load the parameters that `save_weights` wrote. Raise Damaged if names or shapes differ."""
    with naming_damage(path):
        weights = {name.removeprefix(prefix): value for name, value in load_file(path).items()}
    shapes, expected = (
        {name: list(value.shape) for name, value in tensors.items()} for tensors in (weights, module.state_dict())
    )
    if shapes != expected:
        raise Damaged(f"{path}: the weights have the shapes {shapes}, but the folder's configs say {expected}", path)
    if not next(module.parameters()).is_meta:  # a module without memory is only for checks
        module.load_state_dict(weights)
