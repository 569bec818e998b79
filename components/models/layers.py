"""The layers of a pre-trained model: keeping some of them, running them again in the backward pass, how long a text
they read, and whether they leave padding out."""

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
    """Keep some of an encoder's layers: members of the module list that is as long as the config's number of layers."""
    if layers is None:
        return model
    count = model.config.num_hidden_layers
    keep = list(range(layers)) if isinstance(layers, int) else layers
    if not keep or min(keep) < 0 or max(keep) >= count or len(set(keep)) < len(keep):
        raise UserError(
            f"layers: {layers}: the model has {count} layers; accepted: 1 to {count}, or a list of positions"
        )
    in_layers = any(re.search(r"\.\d+\..*relative_attention_bias$", name) for name, _ in model.named_modules())
    if keep[0] != 0 and in_layers:  # T5's; MPNet's lie beside its layers
        raise UserError(
            f"layers: {layers}: the first layer of a {model.config.model_type} model holds the position "
            "biases of all layers; accepted: lists that begin with 0",
            code="needs-first-layer",
        )
    if keep[0] != 0 and model.config.model_type == "modernbert":
        raise UserError(
            f"layers: {layers}: the first layer of a modernbert model has one norm less than the others; "
            "accepted: lists that begin with 0",
            code="needs-first-layer",
        )
    lists = [(parent, name) for parent, name, modules in outermost_lists(model) if len(modules) == count]
    if len(lists) != 1:  # XLM has a list for each part of a layer, BART another for its decoder
        raise UserError(
            f"layers: {layers}: a {model.config.model_type} model has {len(lists) or 'no'} lists of "
            f"{count} layers; accepted with it: null"
        )
    parent, name = lists[0]
    setattr(parent, name, nn.ModuleList([getattr(parent, name)[i] for i in keep]))
    if getattr(model.config, "layer_types", None):  # which layers look at the whole text
        model.config.layer_types = [model.config.layer_types[i] for i in keep]
    model.config.num_hidden_layers = len(keep)
    return model


def outermost_lists(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.ModuleList]]:
    """Yield the lists of modules that are in no other list, with their parents and names. Encoders keep their layers
    there.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield module, name, child
        else:
            yield from outermost_lists(child)


def first_layer(model: Any) -> nn.Module:
    """Return the first of an encoder's layers. UserError unless it has exactly one list of them."""
    lists = [modules for _, _, modules in outermost_lists(model) if len(modules) == model.config.num_hidden_layers]
    if len(lists) != 1:
        raise UserError(
            f"pooling: first_last: a {model.config.model_type} model has {len(lists) or 'no'} lists of its "
            "layers; accepted: cls, mean, last"
        )
    return lists[0][0]


@contextmanager
def states_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the states (N, L, h) that a layer gives in passes of this thread."""
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
    """Have the layers of all models inside keep their inputs alone, and run again in the backward pass with the same
    dropout (Chen et al., 2016). The gradient is the same. A model whose library does not offer it stays as it is."""
    from transformers import PreTrainedModel  # heavy

    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.supports_gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})


def check_padding(model: Any, source: Pretrained) -> None:
    """Raise UserError if a model does not give states of a text's tokens, or if these depend on the padding after them.

    FNet's and ConvBERT's do: a text would get another vector or score in each batch.
    """
    if next(model.parameters()).is_meta:  # made of shapes alone, it computes nothing
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
            f"model: {source.model}: a {kind} model does not read a text's tokens: {reason}; accepted: an "
            "encoder, such as BERT, or a causal language model"
        ) from None
    model.train(was)
    if (alone - padded).abs().max() > 1e-3 * alone.abs().max():
        raise UserError(
            f"model: {source.model}: what a {kind} model makes of a text depends on the padding beside "
            "it; accepted: a model that leaves padding out",
            code="unsupported-model",
        )


def check_length(model: nn.Module, source: Pretrained, *keys: str) -> None:
    """Raise UserError if a limit in `source`, named by one of `keys`, exceeds the positions that the model has
    learnt. These are the positions of its table, or with rotary positions (RoPE) the number in its config.
    """
    config: Any = getattr(model, "config", None)
    limits = [config.max_position_embeddings] if getattr(config, "rope_parameters", None) else []
    for name, module in model.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            if module.padding_idx is not None:  # RoBERTa's start after it, and padding has none
                limits.append(module.num_embeddings - module.padding_idx - 1)
            else:  # padding has one too, up to the width of a batch
                limits.append(module.num_embeddings - module.num_embeddings % padded_width(1))
    for limit in limits:
        for key in keys:
            if getattr(source, key) > limit:
                raise UserError(
                    f"{key}: {getattr(source, key)}: {source.model} reads at most {limit} tokens",
                    code="too-many-tokens",
                )
