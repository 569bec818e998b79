"""Layers of a pre-trained model: their selection, gradient checkpointing, and checks of length and padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.data.batches import padded_width
from sparring.components.models.configs import Pretrained


def keep_layers(model: Any, layers: int | list[int] | None) -> Any:
    """Keep some of an encoder's layers. `layers` are the first N, or a list of positions. If None, keep all.

    The layers are the module list whose length is the config's number of layers. Raise UserError for wrong positions,
    and for models whose first layer or lists do not allow a selection.
    """
    if layers is None:
        return model
    count = model.config.num_hidden_layers
    keep = list(range(layers)) if isinstance(layers, int) else layers
    if not keep or min(keep) < 0 or max(keep) >= count or len(set(keep)) < len(keep):
        raise UserError(
            f"layers: got {layers}, but the model has {count} layers. Use 1 to {count}, or a list of different "
            f"positions from 0 to {count - 1}.",
            code="too-many-layers",
        )
    in_layers = any(re.search(r"\.\d+\..*relative_attention_bias$", name) for name, _ in model.named_modules())
    if keep[0] != 0 and in_layers:  # as in T5, but not in MPNet, which has the biases outside of its layers
        raise UserError(
            f"layers: got {layers}, but the first layer of {model.config.model_type} models has the position biases of "
            "all layers. Use a list that starts with 0.",
            code="needs-first-layer",
        )
    if keep[0] != 0 and model.config.model_type == "modernbert":
        raise UserError(
            f"layers: got {layers}, but the first layer of modernbert models lacks a norm that the remaining layers "
            "have. Use a list that starts with 0.",
            code="needs-first-layer",
        )
    lists = [(parent, name) for parent, name, modules in outermost_lists(model) if len(modules) == count]
    if len(lists) != 1:  # XLM has a list for each part of a layer, and BART a second list for its decoder
        raise UserError(
            f"layers: got {layers}, but layers of {model.config.model_type} models cannot be selected: there are "
            f"{len(lists) or 'no'} lists of {count} layers. Use `layers: null`.",
            code="fixed-by-model",
        )
    parent, name = lists[0]
    setattr(parent, name, nn.ModuleList([getattr(parent, name)[i] for i in keep]))
    if getattr(model.config, "layer_types", None):  # attention types: local or global
        model.config.layer_types = [model.config.layer_types[i] for i in keep]
    model.config.num_hidden_layers = len(keep)
    return model


def outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.ModuleList]]:
    """Yield the module lists that are not inside another list, with their parents and names.

    Encoders keep their layers in such lists.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield module, name, child
        else:
            yield from outermost_lists(child)


def first_layer(model: Any) -> nn.Module:
    """Return the first layer of an encoder. Raise UserError unless it has exactly one list of layers."""
    lists = [modules for _, _, modules in outermost_lists(model) if len(modules) == model.config.num_hidden_layers]
    if len(lists) != 1:
        raise UserError(
            f"pooling: first_last needs a single list of layers, but {model.config.model_type} models have "
            f"{len(lists) or 'none'}. Use cls, mean or last."
        )
    return lists[0][0]


@contextmanager
def states_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the output states (N, L, h) of a layer during passes in this thread."""
    states, thread = list[Tensor](), get_ident()

    def collect(_: nn.Module, __: Any, output: Any) -> None:
        if get_ident() == thread:
            states.append(output[0] if isinstance(output, tuple) else output)

    handle = layer.register_forward_hook(collect)
    try:
        yield states
    finally:
        handle.remove()


def use_gradient_checkpointing(module: nn.Module) -> None:
    """Turn on gradient checkpointing (Chen et al., 2016) in all models inside a module.

    A layer then keeps only its inputs, and runs again in the backward pass with the same dropout. The gradient is the
    same. Models that do not support it stay unchanged.
    """
    from transformers import PreTrainedModel  # heavy

    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.supports_gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})


def check_padding(model: Any, source: Pretrained) -> None:
    """Raise UserError if a model does not return token states, or if these depend on the padding after a text.

    They depend on padding in FNet and ConvBERT. A text would then get a different vector or score in each batch.
    """
    if next(model.parameters()).is_meta:  # a model without weights cannot be tried
        return
    ids = torch.tensor([[1, 2, 3, 4, 5, 0, 0, 0]])
    kind, mask, was = model.config.model_type, (ids > 0).long(), model.training
    model.eval()
    try:
        with torch.no_grad():
            alone, padded = (
                model(input_ids=ids[:, :width], attention_mask=mask[:, :width]).last_hidden_state[:, :5]
                for width in (5, 8)
            )
    except (RuntimeError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"model: {source.model}: {kind} models do not read a text's tokens ({reason}). Use an encoder, such as "
            "BERT, or a causal language model.",
            code="unsupported-model",
        ) from None
    model.train(was)
    if (alone - padded).abs().max() > 1e-3 * alone.abs().max():
        raise UserError(
            f"model: {source.model}: the output of {kind} models for a text depends on the padding after it. Use a "
            "model that ignores padding.",
            code="unsupported-model",
        )


def check_length(model: nn.Module, source: Pretrained, *keys: str) -> None:
    """Raise UserError if a token limit of `source` exceeds the model's positions. `keys` name the limits.

    The number of positions is the size of the position embeddings, or with rotary positions (RoPE) the config's number.
    """
    config: Any = getattr(model, "config", None)
    limits = [config.max_position_embeddings] if getattr(config, "rope_parameters", None) else []
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            if module.padding_idx is not None:  # RoBERTa's positions start after it, and padding has no position
                limits.append(module.num_embeddings - module.padding_idx - 1)
            else:  # padding has positions too, up to the width of a batch
                limits.append(module.num_embeddings - module.num_embeddings % padded_width(1))
    for limit in limits:
        for key in keys:
            if getattr(source, key) > limit:
                raise UserError(
                    f"{key}: got {getattr(source, key)}, but {source.model} reads at most {limit} tokens. Use at most "
                    f"{limit}.",
                    code="too-many-tokens",
                )
