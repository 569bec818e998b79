"""Pre-trained models: loading one from a directory, the hub or a package, keeping some of its layers, saving it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
)
from transformers.utils.hub import cached_file

from components.config import UserError
from components.data.tokenizers import MODEL_CONFIG, tokenizer_file
from components.files import write_json
from components.models import adapters, bert
from components.models.configs import (
    MODULES,
    Adaptable,
    Base,
    DualEncoderConfig,
    MaskedLanguageModelConfig,
    Pretrained,
    locate_model,
)
from components.models.special_tokens import pad_with_any

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate", "dropout", "attention_dropout",
    "embedding_dropout", "mlp_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
)  # fmt: skip
"""The names of dropout in Hugging Face configs: two in BERT's and its relatives', one in T5's, two in DistilBERT's, the
attention's alone in Qwen3's and Llama's, which have no other, three in ModernBERT's and in GPT-2's."""

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "added_tokens.json", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip


def encoder(source: Pretrained, folder: str = "") -> Any:
    """A pre-trained encoder without pooler, with the layers in `source`, or an untrained one of its shape; of an
    encoder-decoder (T5), the encoder.

    `folder` is where it lies inside the model.
    """
    return _adapted(_encoder, source, folder)


def _encoder(source: Pretrained, folder: str) -> Any:
    model = keep_layers(_read(AutoModel, source, folder, add_pooling_layer=False), source.layers)
    if not isinstance(source, DualEncoderConfig | Base):
        return for_reading(model)
    if source.weights == "random":
        with seeded(source.seed):
            try:
                model = type(model)(model.config, add_pooling_layer=False)
            except TypeError:  # DistilBERT and T5 have none
                model = type(model)(model.config)
    return with_attention(for_reading(model), source)


def for_reading(model: Any) -> Any:
    """The model, to read texts and not to write them: a causal one keeps no keys and values for the next token."""
    if is_decoder(model.config):
        model.config.use_cache = False
        _tell_attention(model)
    return model


def with_attention(model: Any, source: DualEncoderConfig | Base) -> Any:
    """The model, whose tokens see what `source.attention` says. UserError if that cannot be chosen."""
    if source.attention is None:
        return model
    if not is_decoder(model.config):
        raise UserError(f"attention: {source.attention}: {source.model} is no causal language model; accepted: null")
    model.config.is_causal = source.attention == "causal"
    _tell_attention(model)
    ids = torch.tensor([[1, 2], [1, 3]])
    was, _ = model.training, model.eval()
    with torch.no_grad():
        one, other = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    model.train(was)
    if torch.allclose(one, other, rtol=1e-4, atol=1e-5) != model.config.is_causal:
        raise UserError(f"attention: {source.attention}: a {model.config.model_type} model has no such attention; "
                        "accepted: null")  # fmt: skip
    return model


def _tell_attention(model: Any) -> None:
    """Tell a model's layers what its config says of the mask: flash attention asks them, and has no mask."""
    if hasattr(model.config, "is_causal"):
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = model.config.is_causal


def is_decoder(config: Any) -> bool:
    """Whether a Hugging Face config is that of a decoder without an encoder: Qwen3's, Mistral's, Llama's."""
    kind = type(config)
    masked = kind in MODEL_FOR_MASKED_LM_MAPPING
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING and not masked and not getattr(config, "is_encoder_decoder", False)


def is_causal(config: Any) -> bool:
    """Whether tokens see only those before them."""
    both_ways = getattr(config, "use_bidirectional_attention", None) is True or not getattr(config, "is_causal", True)
    return is_decoder(config) and not both_ways


def causal_language_model(source: Pretrained, folder: str = "") -> Any:
    """A causal language model with its head, with the layers in `source`. UserError if it is none, if it has no head
    of its own, or one that is more than a linear layer."""
    return _adapted(_causal_language_model, source, folder)


def _causal_language_model(source: Pretrained, folder: str) -> Any:
    config = huggingface_config(source, folder)
    if not is_decoder(config):
        raise UserError(f"pooling: token: {source.model} is no causal language model; accepted: cls, first, mean")
    changed = [key for key in ("final_logit_softcapping", "logits_scaling", "logit_scale")
               if getattr(config, key, None) not in (None, 1)]  # fmt: skip
    if changed:
        raise UserError(f"pooling: token: the logits of {source.model} have {changed[0]}; accepted: last, mean")
    model, about = _read(AutoModelForCausalLM, source, folder, output_loading_info=True)
    if about["missing_keys"]:
        raise UserError(f"pooling: token: {source.model} has no head of a language model "
                        f"({', '.join(sorted(about['missing_keys']))} is missing); accepted: last, mean")  # fmt: skip
    return for_reading(keep_layers(model, source.layers))


def classifier(source: Pretrained, folder: str = "") -> Any:
    """A pre-trained encoder with a classification head of one label, new if there is none, with the layers in
    `source`."""
    return _adapted(_classifier, source, folder, head=True)


def _classifier(source: Pretrained, folder: str) -> Any:
    model = _read(AutoModelForSequenceClassification, source, folder, num_labels=1)
    return for_reading(keep_layers(model, source.layers))


def _adapted(read: Callable[[Any, str], Any], source: Pretrained, folder: str, *, head: bool = False) -> Any:
    """What `read` makes of a model, frozen under a new adapter where `source` asks for one. An adapter in the folder is
    read with its base, and merged into it where `source` asks for none."""
    wanted = source.adapter if isinstance(source, Adaptable) else None
    place = Path(locate_model(source.model)) / folder
    if (saved := adapters.read_base(place)) is None:
        model = read(source, folder)
        if wanted is not None:
            told = source.model_dump(
                include={"model", "revision", "layers", "dropout", "weights", "seed", "attention", "adapter"}
            )
            base = adapters.identified(Base(**told, folder=folder), getattr(model.config, "_commit_hash", None))
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


def _over_base(read: Callable[[Any, str], Any], base: Base, place: Path, *, head: bool) -> Any:
    """A base, which must be as it was, under an adapter without trained weights."""
    adapters.check(base, place)
    model = read(base, base.folder)
    adapters.add(model, base, head=head)
    return model


def masked_language_model(source: MaskedLanguageModelConfig) -> Any:
    """A pre-trained encoder with the head of masked language modelling, new if there is none, with the layers in
    `source`."""
    if is_decoder(config := huggingface_config(source)):
        raise UserError(f"model: {source.model}: a {config.model_type} model predicts no masked tokens; accepted: an "
                        "encoder, such as BERT")  # fmt: skip
    with seeded(source.seed):
        model = keep_layers(_read(AutoModelForMaskedLM, source), source.layers)
        return AutoModelForMaskedLM.from_config(model.config) if source.weights == "random" else model


def language_model(source: Pretrained, auto: Any, tokenizer: Any) -> Any:
    """A pre-trained language model with all its layers; `auto` is the Hugging Face class to load it with.

    An encoder (BERT, MiniLM) loaded as seq2seq gives the weights of both encoder and decoder; the cross-attention
    between them is new (Rothe et al., 2020, "BERT2BERT").
    """
    if auto is not AutoModelForSeq2SeqLM or _has_decoder(source):
        return _adapted(lambda source, folder: _read(auto, source, folder), source, "")
    if isinstance(source, Adaptable) and source.adapter is not None:
        raise UserError(f"adapter: {source.model} is an encoder, and a decoder made of it has layers that are new; "
                        "accepted: null")  # fmt: skip
    from transformers import EncoderDecoderModel  # heavy

    sides = {"encoder_model": encoder(source)}
    sides["decoder_model"] = _read(AutoModelForCausalLM, source, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel.from_encoder_decoder_pretrained(**sides)
    ids = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
           "pad_token_id": tokenizer.pad_token_id}  # fmt: skip
    model.config.update(ids)
    model.generation_config.update(**ids)
    return model


def _has_decoder(source: Pretrained) -> bool:
    """Whether a pre-trained model is an encoder-decoder."""
    return type(huggingface_config(source)) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING


def huggingface_config(source: Pretrained, folder: str = "") -> Any:
    """The Hugging Face config of a pre-trained model, of an adapter that of its base. UserError if it cannot be
    loaded."""
    where = Path(locate_model(source.model))
    if (base := adapters.read_base(where / folder)) is not None:
        return huggingface_config(base, base.folder)
    if (where / MODULES).exists() and not (where / folder / "config.json").exists():
        raise UserError(f"model: {source.model}: there is no encoder beside {MODULES}, but in folders below it; "
                        "accepted here: the folder of one")  # fmt: skip
    try:
        return AutoConfig.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)
    except OSError as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Pretrained, error: OSError) -> UserError:
    return UserError(f"model: {source.model}: cannot be loaded: {str(error).splitlines()[0]}")


def _read(auto: Any, source: Pretrained, folder: str = "", **options: Any) -> Any:
    """A pre-trained model with the dropout in `source`. UserError if it cannot be loaded."""
    where, config = locate_model(source.model), huggingface_config(source, folder)
    try:
        if source.dropout is not None:
            known = [key for key in DROPOUTS if hasattr(config, key)]
            if not known:
                raise UserError(f"model: {source.model}: dropout cannot be set for a {config.model_type} model")
            options |= dict.fromkeys(known, source.dropout)
        return _load(auto, where, revision=source.revision, subfolder=folder, **options)
    except OSError as error:
        raise _unreadable(source, error) from None


def _load(auto: Any, where: str, **options: Any) -> Any:
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


def keep_layers(model: Any, layers: int | list[int] | None) -> Any:
    """Keep some of an encoder's layers: those of the module list whose length is the config's number of layers."""
    if layers is None:
        return model
    count = model.config.num_hidden_layers
    keep = list(range(layers)) if isinstance(layers, int) else layers
    if not keep or min(keep) < 0 or max(keep) >= count or len(set(keep)) < len(keep):
        raise UserError(
            f"layers: {layers}: the model has {count} layers; accepted: 1 to {count}, or a list of positions"
        )
    if keep[0] != 0 and hasattr(model.config, "relative_attention_num_buckets"):
        raise UserError(f"layers: {layers}: the first layer of a {model.config.model_type} model holds the position "
                        "biases of all layers; accepted: lists that begin with 0")  # fmt: skip
    if keep[0] != 0 and model.config.model_type == "modernbert":
        raise UserError(f"layers: {layers}: the first layer of a modernbert model has one norm less than the others; "
                        "accepted: lists that begin with 0")  # fmt: skip
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                setattr(module, name, nn.ModuleList([child[i] for i in keep]))
                if getattr(model.config, "layer_types", None):  # which layers look at the whole text
                    model.config.layer_types = [model.config.layer_types[i] for i in keep]
                model.config.num_hidden_layers = len(keep)
                return model
    raise UserError(f"layers: {layers}: there is no list of {count} layers in a {model.config.model_type} model")


def tokenizer(source: Pretrained, folder: str = "") -> Any:
    """The tokenizer of a pre-trained model, which lies in `folder` inside it."""
    try:
        made = AutoTokenizer.from_pretrained(locate_model(source.model), revision=source.revision, subfolder=folder)
        pad_with_any(made)
        return made
    except OSError as error:
        raise UserError(f"model: {source.model}: no tokenizer: {str(error).splitlines()[0]}") from None


def file_of(source: Pretrained, name: str) -> Path | None:
    """A file of a pre-trained model, by its path inside the model; None if the model has no such file."""
    where = locate_model(source.model)
    if Path(where).is_dir():
        path = Path(where) / name
        return path if path.is_file() else None
    try:
        # Without a connection a file that is not in the hub's cache counts as none.
        found = cached_file(
            where, name, revision=source.revision, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
    except OSError as error:
        raise _unreadable(source, error) from None
    return None if found is None else Path(found)


def use_gradient_checkpointing(module: nn.Module) -> None:
    """Have the layers of all models inside keep their inputs alone, and run again in the backward pass with the same
    dropout (Chen et al., 2016). The gradient is the same. A model whose library does not offer it stays as it is."""
    from transformers import PreTrainedModel  # heavy

    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.supports_gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})


def check_length(model: nn.Module, source: Pretrained, *keys: str) -> None:
    """UserError if a limit in `source`, named by one of `keys`, exceeds the positions that the model has learnt: those
    of its table, or, of a model with rotary ones (RoPE), those that its config says it was made for."""
    config: Any = getattr(model, "config", None)
    limits = [config.max_position_embeddings] if getattr(config, "rope_parameters", None) else []
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            unused = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa starts after it
            limits.append(module.num_embeddings - unused)
    for limit in limits:
        for key in keys:
            if getattr(source, key) > limit:
                raise UserError(f"{key}: {getattr(source, key)}: {source.model} reads at most {limit} tokens")


def load_encoder(folder: Path, *, frozen: bool = False) -> Any:
    """An encoder that `save_tower` wrote; `frozen`, to be asked alone."""
    if frozen and (own := bert.encoder(folder)) is not None:
        return own
    return _saved(_encoder, folder) or for_reading(_load(AutoModel, str(folder), add_pooling_layer=False))


def load_classifier(folder: Path, *, frozen: bool = False) -> Any:
    """A sequence classifier that `save_tower` wrote; `frozen`, to be asked alone."""
    if frozen and (own := bert.classifier(folder)) is not None:
        return own
    return _saved(_classifier, folder, head=True) or _load(AutoModelForSequenceClassification, str(folder))


def load_language_model(folder: Path, auto: Any) -> Any:
    """A language model that `save_tower` wrote; `auto` is the Hugging Face class to load it with."""
    saved = _saved(lambda source, within: _read(auto, source, within), folder)
    return saved or auto.from_pretrained(str(folder), dtype=torch.float32)


def _saved(read: Callable[[Any, str], Any], folder: Path, *, head: bool = False) -> Any:
    """What `save_tower` wrote of a model with an adapter; None where the folder has none."""
    base = adapters.read_base(folder)
    if base is None:
        return None
    model = _over_base(read, base, folder, head=head)
    adapters.load(model, folder)
    return model


def load_causal_language_model(folder: Path) -> Any:
    """A causal language model that `save_tower` wrote."""
    return _saved(_causal_language_model, folder) or _load(AutoModelForCausalLM, str(folder))


def load_masked_language_model(folder: Path) -> Any:
    """A masked language model that `save_tower` wrote."""
    return _load(AutoModelForMaskedLM, str(folder))


def save_tower(model: Any, folder: Path, tokenizer_from: Path, limit: int) -> None:
    """Write a Hugging Face model with its tokenizer, and `limit` as the length at which sentence-transformers cuts. Of
    one with an adapter what is frozen is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    if adapters.has_adapter(model):
        adapters.save(model, folder)
    else:
        model.save_pretrained(str(folder))
    source = tokenizer_file(tokenizer_from).parent
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})


def save_modules(folder: Path, modules: list[tuple[str, str]], about: dict[str, Any], config: Pretrained) -> None:
    """Write a model's description: for sentence-transformers its modules, as pairs of folder and class, and `about`;
    for this project its config."""
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    write_json(folder / MODULES, listed)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, **about})
    (folder / MODEL_CONFIG).write_text(config.model_dump_json(indent=1) + "\n")


def save_weights(module: nn.Module, path: Path, *, prefix: str = "") -> None:
    """Write a module's parameters as safetensors, with `prefix` before each name."""
    tensors = {prefix + name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load_weights(module: nn.Module, path: Path, *, prefix: str = "") -> None:
    """Load the parameters that `save_weights` wrote."""
    module.load_state_dict({name.removeprefix(prefix): value for name, value in load_file(path).items()})


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside this block torch's random numbers come from `seed`; afterwards the generator is as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
