"""Encoder layers without padding.

Between the first and the last layer, a batch's texts form one long sequence of tokens (1, T, h). Only attention keeps
the texts apart. Products, norms, activations and dropouts treat each token by itself, so they would compute padding in
vain: a tenth to a fifth of a training batch. Attention puts the tokens back into padded rows, because on a CPU whole
products are faster than a product for each text (see `components.compute.attention`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

ENCODERS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Types of models whose layers need only states and a mask, as the embeddings contain the positions."""

LEAST = 1 / 32
"""Smallest share of padding for which a batch is packed. With less, moving the tokens takes longer than padding."""


def pack_layers(model: Any) -> None:
    """Make the layers of a pre-trained encoder run on packed tokens. The encoder must have the attention of `fast_cpu`.

    The output is the same, except that the states of padding are 0. A pass that asks for the hidden states of all
    layers is not packed. Models of other types are not changed.
    """
    if model.config.model_type not in ENCODERS or getattr(model.config, "is_decoder", False):
        return
    for stack in model.children():
        if isinstance(layers := getattr(stack, "layer", None), nn.ModuleList):
            layers[0].register_forward_pre_hook(_pack, with_kwargs=True)
            layers[-1].register_forward_hook(_unpack, with_kwargs=True)


def is_packed(states: Tensor, mask: Tensor) -> bool:
    """Return True if `states` (1, ...) are the packed states of the N texts of a mask (N, 1, L, L)."""
    return len(mask) > 1 == len(states)


def packed(rows: Tensor, mask: Tensor) -> Tensor:
    """Pack the tokens of rows (N, L, ...) into (1, T, ...)."""
    return rows.flatten(0, 1).index_select(0, _tokens(mask)).unsqueeze(0)


def unpacked(tokens: Tensor, mask: Tensor) -> Tensor:
    """Unpack tokens (1, T, ...) into rows (N, L, ...), with 0 at padding."""
    count, length = len(mask), mask.shape[-1]
    rows = tokens.new_zeros(count * length, *tokens.shape[2:])
    return rows.index_copy(0, _tokens(mask), tokens[0]).unflatten(0, (count, length))


def _tokens(mask: Tensor) -> Tensor:
    """Return the positions (T,) of tokens in all rows. All tokens of a text attend to what its first position does."""
    return (mask[:, 0, 0] == 0).flatten().nonzero()[:, 0]


def _pack(
    _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    states, mask = inputs[:2]
    if mask is None or len(mask) == 1 or named.get("output_hidden_states"):
        return None
    if len(_tokens(mask)) > (1 - LEAST) * states[..., 0].numel():
        return None
    return (packed(states, mask), *inputs[1:]), named


def _unpack(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], states: Tensor) -> Tensor | None:
    mask = inputs[1]
    return None if mask is None or not is_packed(states, mask) else unpacked(states, mask)
