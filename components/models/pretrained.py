"""Pre-trained models: loading one from a directory, the hub or a package, with some of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from sparring.components.models.over_base import adapted
from sparring.components.models.seeding import seeded
from sparring.components.models.special_tokens import pad_with_any

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def encoder(source: Pretrained, folder: str = "") -> Any:
    """A pre-trained encoder without pooler, with the layers in `source`, or an untrained one of its shape; of an
    encoder-decoder (T5), the encoder.

    `folder` is where it lies inside the model.
    """
    return adapted(plain_encoder, source, folder)


def plain_encoder(source: Pretrained, folder: str) -> Any:
    """The same without an adapter."""
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
    """A causal language model with its head, with the layers in `source`. UserError if it is none, if it has no head
    of its own, or one that is more than a linear layer."""
    return adapted(plain_causal_language_model, source, folder)


def plain_causal_language_model(source: Pretrained, folder: str) -> Any:
    """The same without an adapter."""
    config = huggingface_config(source, folder)
    if not is_decoder(config):
        raise UserError(f"pooling: token: {source.model} is no causal language model; accepted: cls, first, mean")
    changed = [key for key in ("final_logit_softcapping", "logits_scaling", "logit_scale")
               if getattr(config, key, None) not in (None, 1)]  # fmt: skip
    if changed:
        raise UserError(f"pooling: token: the logits of {source.model} have {changed[0]}; accepted: last, mean")
    model, about = read(AutoModelForCausalLM, source, folder, output_loading_info=True)
    if about["missing_keys"]:
        raise UserError(f"pooling: token: {source.model} has no head of a language model "
                        f"({', '.join(sorted(about['missing_keys']))} is missing); accepted: last, mean")  # fmt: skip
    return for_reading(keep_layers(model, source.layers))


def classifier(source: Pretrained, folder: str = "") -> Any:
    """A pre-trained encoder with a classification head of one label, new if there is none, with the layers in
    `source`."""
    return adapted(plain_classifier, source, folder, head=True)


def plain_classifier(source: Pretrained, folder: str) -> Any:
    """The same without an adapter."""
    model = read(AutoModelForSequenceClassification, source, folder, num_labels=1)
    return for_reading(keep_layers(model, source.layers))


def masked_language_model(source: MaskedLanguageModelConfig) -> Any:
    """A pre-trained encoder with the head of masked language modelling, new if there is none, with the layers in
    `source`."""
    if is_decoder(config := huggingface_config(source)):
        raise UserError(f"model: {source.model}: a {config.model_type} model predicts no masked tokens; accepted: an "
                        "encoder, such as BERT")  # fmt: skip
    with seeded(source.seed):
        model = keep_layers(read(AutoModelForMaskedLM, source), source.layers)
        return AutoModelForMaskedLM.from_config(model.config) if source.weights == "random" else model


def language_model(source: Pretrained, auto: Any, tokenizer: Any) -> Any:
    """A pre-trained language model with all its layers; `auto` is the Hugging Face class to load it with.

    An encoder (BERT, MiniLM) loaded as seq2seq gives the weights of both encoder and decoder; the cross-attention
    between them is new (Rothe et al., 2020, "BERT2BERT"). UserError for a model of the other kind.
    """
    config = huggingface_config(source)
    causal, writes = auto is AutoModelForCausalLM, is_decoder(config)
    if writes != causal:
        what = "continues a text" if writes else "sees in a text what it should write"
        raise UserError(f"model: {source.model}: a {config.model_type} model {what}; accepted: a model of the other "
                        f"kind, or, of a generator, `architecture: {'causal' if writes else 'seq2seq'}`")  # fmt: skip
    if causal or _has_decoder(source):
        return adapted(lambda source, folder: read(auto, source, folder), source, "")
    if isinstance(source, Adaptable) and source.adapter is not None:
        raise UserError(f"adapter: {source.model} is an encoder, and a decoder made of it has layers that are new; "
                        "accepted: null")  # fmt: skip
    from transformers import EncoderDecoderModel  # heavy

    sides = {"encoder_model": encoder(source)}
    sides["decoder_model"] = read(AutoModelForCausalLM, source, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(**sides)
    ids = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
           "pad_token_id": tokenizer.pad_token_id}  # fmt: skip
    model.config.update(ids)
    model.generation_config.update(**ids)
    return model


def _has_decoder(source: Pretrained) -> bool:
    """Whether a pre-trained model is an encoder-decoder."""
    return type(huggingface_config(source)) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes of a model in training differ, by its modules or by what its config says."""
    shares = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    shares += [getattr(config, name, 0.0) for config in configs for name in DROPOUTS]
    return any(isinstance(share, float) and share > 0 for share in shares)


def huggingface_config(source: Pretrained, folder: str = "") -> Any:
    """The Hugging Face config of a pre-trained model, of an adapter that of its base. UserError if it cannot be
    loaded."""
    where = Path(locate_model(source.model))
    if (base := adapters.read_base(where / folder)) is not None:
        return huggingface_config(base, base.folder)
    if (where / MODULES).exists() and not (where / folder / "config.json").exists():
        raise UserError(f"model: {source.model}: there is no encoder beside {MODULES}, but in folders below it; "
                        "accepted here: the folder of one")  # fmt: skip
    with _loading(source):
        return AutoConfig.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)


@contextmanager
def _loading(source: Pretrained, what: str = "cannot be loaded") -> Iterator[None]:
    """UserError, which names the model, where it cannot be loaded in this block."""
    host = None if Path(locate_model(source.model)).exists() else hub.go_offline_if_unreachable()
    try:
        with naming_damage(Path(locate_model(source.model))):
            yield
    except Damaged as error:
        raise UserError(f"model: {source.model}: {what}: {error}; accepted: a whole model") from None
    except (OSError, SafetensorError, ValueError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        if host and isinstance(error, OSError):
            why = f"{host} cannot be reached, and it is not in the cache"
        raise UserError(f"model: {source.model}: {what}: {why}") from None


def read(auto: Any, source: Pretrained, folder: str = "", **options: Any) -> Any:
    """A pre-trained model with the dropout in `source`. UserError if it cannot be loaded."""
    where, config = locate_model(source.model), huggingface_config(source, folder)
    if source.dropout is not None:
        known = [key for key in DROPOUTS if hasattr(config, key)]
        if not known:
            raise UserError(f"model: {source.model}: dropout cannot be set for a {config.model_type} model")
        options |= dict.fromkeys(known, source.dropout)
    with _loading(source):
        return load(auto, where, revision=source.revision, subfolder=folder, **options)


def load(auto: Any, where: str, **options: Any) -> Any:
    """`from_pretrained` in fp32, without the pooler if the architecture has one."""
    options |= {"dtype": torch.float32}
    if auto is AutoModel:
        place = {key: options[key] for key in ("revision", "subfolder") if key in options}
        config = AutoConfig.from_pretrained(where, **place)
        if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:  # AutoModel would load T5's decoder too
            auto = AutoModelForTextEncoding
    try:
        return auto.from_pretrained(where, **options)
    except TypeError:
        options.pop("add_pooling_layer", None)  # DistilBERT, T5 and all decoders have none
        return auto.from_pretrained(where, **options)


def tokenizer(source: Pretrained, folder: str = "") -> Any:
    """The tokenizer of a pre-trained model, which lies in `folder` inside it. UserError if it cannot be loaded, or
    written as the one file that token stores are made with."""
    with _loading(source, "no tokenizer"):
        made = AutoTokenizer.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)
        if not made.is_fast:
            raise UserError(f"model: {source.model}: its {type(made).__name__} is Python code alone; accepted: a model "
                            "with a tokenizer.json, or whose tokenizer can be written as one")  # fmt: skip
        pad_with_any(made)
        made.truncation_side = "right"  # a text's beginning is read, and by those that load an export too
        return made


def file_of(source: Pretrained, name: str) -> Path | None:
    """A file of a pre-trained model, by its path inside the model; None if the model has no such file."""
    where = locate_model(source.model)
    if Path(where).is_dir():
        path = Path(where) / name
        return path if path.is_file() else None
    with _loading(source):
        # Without a connection a file that is not in the hub's cache counts as none.
        found = cached_file(
            where, name, revision=source.revision, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
    return None if found is None else Path(found)
