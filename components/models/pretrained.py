"""Loading of pre-trained models from a directory, the hub or a package."""

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
"""True while models are made without the values of their weights."""
NEW = re.compile("pooler|crossattention")
"""Parts that a pre-trained model may lack, because they are not used, or because they are trained."""

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def encoder(source: Pretrained, folder: str = "") -> Any:
    """Read a pre-trained encoder without pooler, with the layers in `source`, or make an untrained one of its shape.

    Of an encoder-decoder (T5), read the encoder. `folder` is its place inside the model.
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
            except TypeError:  # DistilBERT and T5 have no pooler
                model = type(model)(model.config)
    return with_attention(for_reading(model), source)


def causal_language_model(source: Pretrained, folder: str = "") -> Any:
    """Read a causal language model with its head and the layers in `source`.

    Raise UserError for any other model, for a missing head, and for a head that is more than a linear layer.
    """
    return adapted(plain_causal_language_model, source, folder)


def plain_causal_language_model(source: Pretrained, folder: str) -> Any:
    """Read a causal language model without an adapter."""
    config = huggingface_config(source, folder)
    if not is_decoder(config):
        raise UserError(
            f"pooling: token needs a causal language model, and {source.model} is not one. Use cls, first or mean."
        )
    changed = [
        key
        for key in ("final_logit_softcapping", "logits_scaling", "logit_scale")
        if getattr(config, key, None) not in (None, 1)
    ]
    if changed:
        raise UserError(
            f"pooling: token does not support models with {changed[0]}, such as {source.model}. Use last or mean."
        )
    model, report = _read(AutoModelForCausalLM, source, folder)
    if report["missing_keys"]:
        raise UserError(
            f"pooling: token needs the head of a language model, and {source.model} has none "
            f"({', '.join(sorted(report['missing_keys']))} is missing). Use last or mean."
        )
    return for_reading(keep_layers(model, source.layers))


def classifier(source: Pretrained, folder: str = "") -> Any:
    """Read a pre-trained encoder with a classification head of one label and the layers in `source`.

    If the model has no such head, the head is new.
    """
    return adapted(plain_classifier, source, folder, head=True)


def plain_classifier(source: Pretrained, folder: str) -> Any:
    """Read a classifier without an adapter."""
    label = getattr(source, "label", None)
    options = {} if label is not None else {"num_labels": 1}
    model = read(AutoModelForSequenceClassification, source, folder, **options)
    if label is not None:
        _keep_label(model, source, label, getattr(source, "other_label", None))
    return for_reading(keep_layers(model, source.layers))


def _keep_label(model: Any, source: Pretrained, *labels: int | str | None) -> None:
    """Give a classifier one label: the logit of the first label, minus that of the second if it is not None.

    Raise UserError for a label that the classifier does not have.
    """
    names = {index: str(name) for index, name in model.config.id2label.items()}
    rows = []
    for key, label in zip(("label", "other_label"), labels, strict=True):
        if label is None:
            continue
        indexes = [index for index, name in names.items() if label in (index, name)]
        if not indexes:
            labelled = ", ".join(f"{index} ({name})" for index, name in names.items())
            raise UserError(f"{key}: got {label}, but {source.model} has other labels. Use one of these: {labelled}.")
        rows.append(indexes[0])
    base = set(model.base_model.modules())
    heads = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and part not in base and part.out_features == len(names)
    ]
    if not heads:
        raise UserError(
            f"label: the head of {source.model} does not end in a linear layer. Use a model with one label.",
            code="unsupported-model",
        )
    name, head = heads[-1]
    kept = nn.Linear(head.in_features, 1, bias=head.bias is not None, device=head.weight.device)
    with torch.no_grad():
        for parameter, whole in ((kept.weight, head.weight), (kept.bias, head.bias)):
            if whole is not None:
                values = whole[rows[0]] if len(rows) == 1 else whole[rows[0]] - whole[rows[1]]
                parameter.copy_(values.reshape(parameter.shape))
    model.set_submodule(name, kept)
    model.num_labels = model.config.num_labels = 1


def masked_language_model(source: MaskedLanguageModelConfig) -> Any:
    """Read a pre-trained encoder with its head of masked language modelling and the layers in `source`.

    If the model has no such head, the head is new. Raise UserError for a decoder.
    """
    if is_decoder(config := huggingface_config(source)):
        raise UserError(
            f"model: {source.model}: {config.model_type} models do not predict masked tokens. Use an encoder, such as "
            "BERT."
        )
    with seeded(source.seed):
        model = keep_layers(read(AutoModelForMaskedLM, source), source.layers)
        return AutoModelForMaskedLM.from_config(model.config) if source.weights == "random" else model


def language_model(source: Pretrained, auto: Any, tokenizer: Any) -> Any:
    """Read a pre-trained language model with all its layers. `auto` is the Hugging Face class to load it with.

    If an encoder (BERT, MiniLM) is loaded as seq2seq, both encoder and decoder get its weights. The cross-attention
    between them is new (Rothe et al., 2020, "BERT2BERT"). Raise UserError for a causal model where a seq2seq model is
    needed, or the reverse.
    """
    config = huggingface_config(source)
    causal, writes = auto is AutoModelForCausalLM, is_decoder(config)
    if writes != causal:
        kinds = ("causal", "seq2seq") if writes else ("not causal", "causal")
        raise UserError(
            f"model: {source.model}: {config.model_type} models are {kinds[0]}, but a {kinds[1]} model is needed. Use "
            f"another model, or for a generator `architecture: {'causal' if writes else 'seq2seq'}`."
        )
    if causal or _has_decoder(source):
        return adapted(lambda source, folder: read(auto, source, folder), source, "")
    if isinstance(source, Adaptable) and source.adapter is not None:
        raise UserError(
            f"adapter: {source.model} is an encoder, and a decoder made from it has new layers, which an adapter would "
            "not train. Use `adapter: null`."
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
    """Return True if a pre-trained model is an encoder-decoder."""
    return type(huggingface_config(source)) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def has_dropout(model: nn.Module) -> bool:
    """Return True if a model has dropout in training, by its modules or by its config."""
    shares = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    shares += [getattr(config, name, 0.0) for config in configs for name in DROPOUTS]
    return any(isinstance(share, float) and share > 0 for share in shares)


def huggingface_config(source: Pretrained, folder: str = "") -> Any:
    """Read the Hugging Face config of a pre-trained model. For an adapter, read the config of its base.

    Raise UserError if the config cannot be loaded.
    """
    path = Path(locate_model(source.model))
    if (base := adapters.read_base(path / folder)) is not None:
        return huggingface_config(base, base.folder)
    if (path / MODULES).exists() and not (path / folder / "config.json").exists():
        raise UserError(
            f"model: {source.model}: this folder has its encoders in subfolders. Name the subfolder of an encoder."
        )
    with _loading(source):
        return AutoConfig.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)


@contextmanager
def _loading(source: Pretrained, problem: str = "cannot be loaded") -> Iterator[None]:
    """Turn errors of loading in this block into UserError, which names the model."""
    host = None if Path(locate_model(source.model)).exists() else hub.go_offline_if_unreachable()
    try:
        with naming_damage(Path(locate_model(source.model))):
            yield
    except Damaged as error:
        raise UserError(
            f"model: {source.model}: {problem}: {error}. Use a complete model.", code="not-loadable"
        ) from None
    except (OSError, SafetensorError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if host and isinstance(error, OSError):
            reason = f"{host} cannot be reached, and the model is not in the cache"
        raise UserError(f"model: {source.model}: {problem}: {reason}") from None


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Make models in this block without reading or downloading weights. This only checks that everything fits."""
    token = _shapes.set(True)
    try:
        with torch.device("meta"):
            yield
    finally:
        _shapes.reset(token)


def read(auto: Any, source: Pretrained, folder: str = "", **options: Any) -> Any:
    """Read a pre-trained model with the dropout in `source`.

    Raise UserError if the model cannot be loaded, or if its weights do not match its `config.json`.
    """
    return _read(auto, source, folder, **options)[0]


def _read(auto: Any, source: Pretrained, folder: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Read a model, with Transformers' report on its weights."""
    place, config = locate_model(source.model), huggingface_config(source, folder)
    if source.dropout is not None:
        keys = [key for key in DROPOUTS if hasattr(config, key)]
        if not keys:
            raise UserError(
                f"model: {source.model}: dropout cannot be set for {config.model_type} models. Use `dropout: null`.",
                code="fixed-by-model",
            )
        options |= dict.fromkeys(keys, source.dropout)
    if _shapes.get():
        options |= {"device_map": "meta", "local_files_only": True}
    with _loading(source):
        model, report = load(auto, place, revision=source.revision, subfolder=folder, **options)
    _check_fit(source, model, report)
    return model, report


def _check_fit(source: Pretrained, model: Any, report: dict[str, Any]) -> None:
    """Raise UserError if weights do not match the architecture in `config.json`.

    Missing weights would be random numbers. Only a head may be missing.
    """
    base = getattr(model, model.base_model_prefix, model)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    names = {prefix + name for name in base.state_dict()}
    both = "Use a model whose weights match its config.json"
    for name, shape, expected in sorted(report["mismatched_keys"], key=lambda entry: (entry[0] not in names, entry[0])):
        if name in names or not type(model).__name__.endswith("ForSequenceClassification"):
            raise UserError(
                f"model: {source.model}: the weights do not match config.json: {name} has the shape {list(shape)} "
                f"instead of {list(expected)}. {both}.",
                code="other-weights",
            )
        raise UserError(
            f"model: {source.model}: the head gives {shape[0]} scores per pair, but a ranker needs one. Set `label` to "
            "the label whose score counts, or use `pooling: first` or `mean`, which put a new head on the encoder.",
            code="several-scores",
        )
    if lacking := sorted(name for name in names & set(report["missing_keys"]) if not NEW.search(name)):
        raise UserError(
            f"model: {source.model}: the weights do not match config.json: {lacking[0]} is missing. {both}.",
            code="other-weights",
        )
    forms = {re.sub(r"\d+", "0", name) for name in names}
    unexpected = (f"{prefix}{name.removeprefix(prefix)}" for name in report["unexpected_keys"])
    if layers := sorted(name for name in unexpected if re.sub(r"\d+", "0", name) in forms):
        raise UserError(
            f"model: {source.model}: the weights do not match config.json: {layers[0]} is not part of that "
            f"architecture. {both}. To leave layers out, use `layers` in the experiment's config.",
            code="other-weights",
        )


def load(auto: Any, location: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Call `from_pretrained` in fp32 and without a pooler. Return the model, and the report on its weights."""
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
        options.pop("add_pooling_layer", None)  # DistilBERT, T5 and all decoders have no pooler
        loaded = auto.from_pretrained(location, **options)
    return loaded


def tokenizer(source: Pretrained, folder: str = "") -> Any:
    """Load the tokenizer of a pre-trained model, from `folder` inside it.

    Raise UserError if it cannot be loaded, or cannot be written as the tokenizer.json that token stores need.
    """
    with _loading(source, "no tokenizer"):
        loaded = AutoTokenizer.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)
        if not loaded.is_fast:
            raise UserError(
                f"model: {source.model}: its {type(loaded).__name__} exists as Python code only. Use a model whose "
                "tokenizer has, or can be converted to, a tokenizer.json.",
                code="unsupported-tokenizer",
            )
        pad_with_any(loaded)
        loaded.truncation_side = "right"  # keep the start of a text, here and in libraries that load an export
        return loaded


def file_of(source: Pretrained, name: str) -> Path | None:
    """Return a file of a pre-trained model by its path inside the model. Return None if there is no such file."""
    location = locate_model(source.model)
    if Path(location).is_dir():
        path = Path(location) / name
        return path if path.is_file() else None
    with _loading(source):
        # Without a connection, a file that is not in the hub's cache counts as missing.
        file = cached_file(
            location,
            name,
            revision=source.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    return None if file is None else Path(file)
