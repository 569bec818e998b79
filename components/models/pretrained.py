"""Pre-trained models: loading one from a directory, the hub or a package, with some of its layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
)
from transformers.utils.hub import cached_file

from sparring.components.config import Damaged, UserError
from sparring.components.files import naming_damage
from sparring.components.models import adapters, hub
from sparring.components.models.adapter_base import adapted
from sparring.components.models.attention import for_reading, is_decoder, with_attention
from sparring.components.models.capabilities import DROPOUTS
from sparring.components.models.configs import (
    MODULES,
    Adaptable,
    Base,
    DualEncoderConfig,
    MaskedLanguageModelConfig,
    Pretrained,
    locate_model,
)
from sparring.components.models.layers import keep_layers
from sparring.components.models.seeding import seeded
from sparring.components.models.special_tokens import pad_with_any

_shapes = ContextVar("_shapes", default=False)
"""Whether models are made without the values of their weights."""
NEW = re.compile("pooler|crossattention")
"""Parts of an encoder that a pre-trained one may lack: they are not used, or are trained."""

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def encoder(source: Pretrained, folder: str = "") -> Any:
    """Read a pre-trained encoder without pooler, with the layers in `source`, or make an untrained one of its shape.
    From an encoder-decoder (T5), read the encoder.

    `folder` is where it lies inside the model.
    """
    return adapted(plain_encoder, source, folder)


def plain_encoder(source: Pretrained, folder: str) -> Any:
    """Read an encoder without an adapter."""
    model = keep_layers(read(AutoModel, source, folder, add_pooling_layer=False), source.layers)
    if not isinstance(source, DualEncoderConfig | Base):
        return for_reading(model)
    if source.weights == "random":
        with seeded(source.seed):
            try:
                model = type(model)(model.config, add_pooling_layer=False)
            except TypeError:  # DistilBERT and T5 have none
                model = type(model)(model.config)
    return with_attention(for_reading(model), source)


def causal_language_model(source: Pretrained, folder: str = "") -> Any:
    """Read a causal language model with its head, with the layers in `source`. UserError for any other model, a
    missing head, or a head that is more than a linear layer.
    """
    return adapted(plain_causal_language_model, source, folder)


def plain_causal_language_model(source: Pretrained, folder: str) -> Any:
    """Read a causal language model without an adapter."""
    config = huggingface_config(source, folder)
    if not is_decoder(config):
        raise UserError(f"pooling: token: {source.model} is no causal language model; accepted: cls, first, mean")
    changed = [
        key
        for key in ("final_logit_softcapping", "logits_scaling", "logit_scale")
        if getattr(config, key, None) not in (None, 1)
    ]
    if changed:
        raise UserError(f"pooling: token: the logits of {source.model} have {changed[0]}; accepted: last, mean")
    model, report = _read(AutoModelForCausalLM, source, folder)
    if report["missing_keys"]:
        raise UserError(
            f"pooling: token: {source.model} has no head of a language model "
            f"({', '.join(sorted(report['missing_keys']))} is missing); accepted: last, mean"
        )
    return for_reading(keep_layers(model, source.layers))


def classifier(source: Pretrained, folder: str = "") -> Any:
    """Read a pre-trained encoder with a classification head of a single label, new if there is none, with the layers
    in `source`.
    """
    return adapted(plain_classifier, source, folder, head=True)


def plain_classifier(source: Pretrained, folder: str) -> Any:
    """Read a classifier without an adapter."""
    model = read(AutoModelForSequenceClassification, source, folder, num_labels=1)
    return for_reading(keep_layers(model, source.layers))


def masked_language_model(source: MaskedLanguageModelConfig) -> Any:
    """Read a pre-trained encoder with its head of masked language modelling, new if there is none, with the layers
    in `source`.
    """
    if is_decoder(config := huggingface_config(source)):
        raise UserError(
            f"model: {source.model}: a {config.model_type} model predicts no masked tokens; accepted: an "
            "encoder, such as BERT"
        )
    with seeded(source.seed):
        model = keep_layers(read(AutoModelForMaskedLM, source), source.layers)
        return AutoModelForMaskedLM.from_config(model.config) if source.weights == "random" else model


def language_model(source: Pretrained, auto: Any, tokenizer: Any) -> Any:
    """Read a pre-trained language model with all its layers. `auto` is the Hugging Face class to load it with.

    An encoder (BERT, MiniLM) loaded as seq2seq gives the weights of both encoder and decoder. The cross-attention
    between them is new (Rothe et al., 2020, "BERT2BERT"). UserError for a model of the other kind.
    """
    config = huggingface_config(source)
    causal, writes = auto is AutoModelForCausalLM, is_decoder(config)
    if writes != causal:
        behaviour = "continues a text" if writes else "sees in a text what it should write"
        raise UserError(
            f"model: {source.model}: a {config.model_type} model {behaviour}; accepted: a model of the other "
            f"kind, or, of a generator, `architecture: {'causal' if writes else 'seq2seq'}`"
        )
    if causal or _has_decoder(source):
        return adapted(lambda source, folder: read(auto, source, folder), source, "")
    if isinstance(source, Adaptable) and source.adapter is not None:
        raise UserError(
            f"adapter: {source.model} is an encoder, and a decoder made of it has layers that are new; accepted: null"
        )
    from transformers import EncoderDecoderModel  # heavy

    sides = {"encoder_model": encoder(source)}
    sides["decoder_model"] = read(AutoModelForCausalLM, source, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(**sides)
    ids = {
        "decoder_start_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model.config.update(ids)
    model.generation_config.update(**ids)
    return model


def _has_decoder(source: Pretrained) -> bool:
    """Check whether a pre-trained model is an encoder-decoder."""
    return type(huggingface_config(source)) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def has_dropout(model: nn.Module) -> bool:
    """Check whether two passes of a model in training differ, by its modules or by its config."""
    shares = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    shares += [getattr(config, name, 0.0) for config in configs for name in DROPOUTS]
    return any(isinstance(share, float) and share > 0 for share in shares)


def huggingface_config(source: Pretrained, folder: str = "") -> Any:
    """Read the Hugging Face config of a pre-trained model, of an adapter that of its base. UserError if it cannot be
    loaded.
    """
    path = Path(locate_model(source.model))
    if (base := adapters.read_base(path / folder)) is not None:
        return huggingface_config(base, base.folder)
    if (path / MODULES).exists() and not (path / folder / "config.json").exists():
        raise UserError(
            f"model: {source.model}: there is no encoder beside {MODULES}, but in folders below it; "
            "accepted here: the folder of one"
        )
    with _loading(source):
        return AutoConfig.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)


@contextmanager
def _loading(source: Pretrained, problem: str = "cannot be loaded") -> Iterator[None]:
    """Raise UserError, which names the model, if it cannot be loaded in this block."""
    host = None if Path(locate_model(source.model)).exists() else hub.go_offline_if_unreachable()
    try:
        with naming_damage(Path(locate_model(source.model))):
            yield
    except Damaged as error:
        raise UserError(f"model: {source.model}: {problem}: {error}; accepted: a whole model") from None
    except (OSError, SafetensorError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if host and isinstance(error, OSError):
            reason = f"{host} cannot be reached, and it is not in the cache"
        raise UserError(f"model: {source.model}: {problem}: {reason}") from None


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Make models in this block without reading weights, and without fetching any: only whether all fits is checked."""
    token = _shapes.set(True)
    try:
        with torch.device("meta"):
            yield
    finally:
        _shapes.reset(token)


def read(auto: Any, source: Pretrained, folder: str = "", **options: Any) -> Any:
    """Read a pre-trained model with the dropout in `source`. UserError if it cannot be loaded, or if its weights and
    its `config.json` do not belong together.
    """
    return _read(auto, source, folder, **options)[0]


def _read(auto: Any, source: Pretrained, folder: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Read a model, with Transformers' report on its weights."""
    place, config = locate_model(source.model), huggingface_config(source, folder)
    if source.dropout is not None:
        keys = [key for key in DROPOUTS if hasattr(config, key)]
        if not keys:
            raise UserError(f"model: {source.model}: dropout cannot be set for a {config.model_type} model")
        options |= dict.fromkeys(keys, source.dropout)
    if _shapes.get():
        options |= {"device_map": "meta", "local_files_only": True}
    with _loading(source):
        model, report = load(auto, place, revision=source.revision, subfolder=folder, **options)
    _check_fit(source, model, report)
    return model, report


def _check_fit(source: Pretrained, model: Any, report: dict[str, Any]) -> None:
    """Raise UserError if weights do not fit the architecture in `config.json`.

    Missing weights would be random numbers. A head may be missing.
    """
    base = getattr(model, model.base_model_prefix, model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    names = {prefix + name for name in base.state_dict()}
    both = "accepted: a model whose weights and config.json belong together"
    for name, shape, expected in sorted(report["mismatched_keys"], key=lambda entry: (entry[0] not in names, entry[0])):
        if name in names or not type(model).__name__.endswith("ForSequenceClassification"):
            raise UserError(
                f"model: {source.model}: its weights do not fit its config.json: {name} has the shape "
                f"{list(shape)}, and {list(expected)} by config.json; {both}"
            )
        raise UserError(
            f"model: {source.model}: its head gives {shape[0]} scores for a pair, and a ranker gives one; "
            "accepted: a model with one label (num_labels), or `pooling: first` or `mean`, which put a new "
            "head on its encoder"
        )
    if lacking := sorted(name for name in names & set(report["missing_keys"]) if not NEW.search(name)):
        raise UserError(
            f"model: {source.model}: its weights do not fit its config.json: {lacking[0]} is not among them; {both}"
        )
    forms = {re.sub(r"\d+", "0", name) for name in names}
    unexpected = (f"{prefix}{name.removeprefix(prefix)}" for name in report["unexpected_keys"])
    if layers := sorted(name for name in unexpected if re.sub(r"\d+", "0", name) in forms):
        raise UserError(
            f"model: {source.model}: its weights do not fit its config.json: {layers[0]} has no place "
            f"there; {both}; `layers` of this config leaves layers out"
        )


def load(auto: Any, location: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Call `from_pretrained` in fp32, without a pooler. Return the model and its report."""
    options |= {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if auto is AutoModel:
        place = {key: options[key] for key in ("revision", "subfolder") if key in options}
        config = AutoConfig.from_pretrained(location, **place)
        if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:  # AutoModel would load T5's decoder too
            auto = AutoModelForTextEncoding
    loaded: tuple[Any, dict[str, Any]]
    try:
        loaded = auto.from_pretrained(location, **options)
    except TypeError:
        options.pop("add_pooling_layer", None)  # DistilBERT, T5 and all decoders have none
        loaded = auto.from_pretrained(location, **options)
    return loaded


def tokenizer(source: Pretrained, folder: str = "") -> Any:
    """Load the tokenizer of a pre-trained model, from `folder` inside it.

    UserError if it cannot be loaded, or cannot be written as the single file that token stores are made with.
    """
    with _loading(source, "no tokenizer"):
        loaded = AutoTokenizer.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)
        if not loaded.is_fast:
            raise UserError(
                f"model: {source.model}: its {type(loaded).__name__} is Python code alone; accepted: a model "
                "with a tokenizer.json, or whose tokenizer can be written as one"
            )
        pad_with_any(loaded)
        loaded.truncation_side = "right"  # a text's beginning is read, and by those that load an export too
        return loaded


def file_of(source: Pretrained, name: str) -> Path | None:
    """Return a file of a pre-trained model, by its path inside the model, or None if the model has no such file."""
    location = locate_model(source.model)
    if Path(location).is_dir():
        path = Path(location) / name
        return path if path.is_file() else None
    with _loading(source):
        # Without a connection a file that is not in the hub's cache counts as none.
        file = cached_file(
            location,
            name,
            revision=source.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    return None if file is None else Path(file)
