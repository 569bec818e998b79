"""Write a start model: a pre-trained model as it is, or with fewer layers or a new part if the config asks for it."""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparring.components.config import UserError, listing
from sparring.components.data.tokenizers import TOKEN_LIMITS, save_tokenizer
from sparring.components.files import replacing
from sparring.components.models.capabilities import can_be_read
from sparring.components.models.configs import (
    CrossEncoderConfig,
    DualEncoderConfig,
    MaskedLanguageModelConfig,
    locate_model,
)
from sparring.components.models.generator_configs import GeneratorConfig
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.retrieval.kind import RetrieverConfig, kind_named
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

StartConfig = RetrieverConfig | CrossEncoderConfig | GeneratorConfig | ReaderConfig | MaskedLanguageModelConfig


def _refuses(config: StartConfig, encoder: Path | None) -> None:
    """Refuse a model with other parts than the config asks for, or whose weights do not fit its own config."""
    if encoder is not None or can_be_read(config):
        from sparring.components.models import pretrained  # imports torch

        with pretrained.shapes_alone():
            _started(config, encoder)


@Description(part="data", version=2, refuses=_refuses)
def start(out: Path, machine: Machine, *, config: StartConfig, encoder: Path | None = None) -> dict[str, Any]:
    """Write the model to `out/model`. It begins from the model that the config names, or with `encoder`, the artifact
    of another model, from that model's current encoder."""
    return _written(out, config, encoder)


def _refuses_as_it_comes(config: StartConfig, most: int) -> None:
    """Refuse what `start` refuses, and a ranker that would need a new head."""
    if can_be_read(config):
        _refuses(_as_it_comes(config, most)[0], None)


@Description(part="data", refuses=_refuses_as_it_comes)
def start_as_it_comes(out: Path, machine: Machine, *, config: StartConfig, most: int) -> dict[str, Any]:
    """Write a model that is used but not trained. Values that the config leaves out are those with which
    sentence-transformers loads it. Longer lengths are cut to `most` tokens, and the summary's note says so.

    UserError for a ranker that would need a new head.
    """
    config, cut = _as_it_comes(config, most)
    summary = _written(out, config, None)
    if not cut:
        return summary
    lengths = listing(f"`{key}` is {most:,} instead of {length:,}" for key, length in cut.items())
    return {**summary, "note": f"{lengths}, because `tokens.max_tokens` keeps no more tokens of a text."}


def _as_it_comes(config: StartConfig, most: int) -> tuple[StartConfig, dict[str, int]]:
    """Fill in what a config leaves out as sentence-transformers does. Return the lengths that `most` cuts, too."""
    from sparring.components.models import sentence_modules  # imports torch

    usual = sentence_modules.usual(config) if isinstance(config, DualEncoderConfig | CrossEncoderConfig) else {}
    filled = {key: value for key, value in usual.items() if getattr(config, key) is None}
    cut = {key: filled[key] for key in TOKEN_LIMITS if filled.get(key, 0) > most}
    return config.model_copy(update=filled | dict.fromkeys(cut, most)), cut


def _written(out: Path, config: StartConfig, encoder: Path | None) -> dict[str, Any]:
    """Write a model and its tokenizer. Return the summary."""
    model, tokenizer = _started(config, encoder)
    with replacing(out / "tokenizer") as folder:
        save_tokenizer(tokenizer, folder)
    with replacing(out / "model") as folder:
        model.save(folder, out / "tokenizer")
    weights = sorted((out / "model").rglob("*.safetensors"))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest(),
        "tokenizer": locate_model(config.model).rsplit("/", 1)[-1],
    }


def _started(config: StartConfig, encoder: Path | None) -> tuple[Any, Any]:
    """Return the model and its tokeniser."""
    from sparring.components.models.cross_encoder import CrossEncoder  # they import torch and transformers
    from sparring.components.models.generator import Generator
    from sparring.components.models.masked_language_model import MaskedLanguageModel
    from sparring.components.models.reader import Reader

    kinds: dict[str, Any] = {
        "cross_encoder": CrossEncoder,
        "generator": Generator,
        "reader": Reader,
        "masked_language_model": MaskedLanguageModel,
    }
    kind = kinds[config.kind] if config.kind in kinds else kind_named(config.kind).model()
    changes: dict[str, Any] = {}
    if encoder is not None:
        changes = {"model": str(encoder / "model"), "revision": None, "layers": None}
        changes |= {"weights": "pretrained"} if isinstance(config, DualEncoderConfig) else {}
    model, tokenizer = kind.start(config.model_copy(update=changes))
    model.config = model.config.model_copy(update={name: getattr(config, name) for name in changes})
    _check_vocabulary(config, model, tokenizer)
    return model, tokenizer


def _check_vocabulary(config: StartConfig, model: Any, tokenizer: Any) -> None:
    """Raise UserError if the tokenizer has tokens that the model has no embedding for."""
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tables = []
    for part in filter(lambda module: hasattr(module, "get_input_embeddings"), model.modules()):
        with suppress(NotImplementedError):  # a head without its encoder
            tables.append(part.get_input_embeddings().num_embeddings)
    if tables and last >= min(tables):
        raise UserError(
            f"model: {config.model}: its tokenizer does not fit its weights: the token {token!r} has the number "
            f"{last}, and there are {min(tables)} embeddings; accepted: a model with a tokenizer of its own"
        )
