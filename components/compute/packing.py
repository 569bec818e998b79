"""Layers without padding: between an encoder's first and last layer, the tokens of a batch's texts lie one after
another, (1, T, h), and only attention sees the texts apart.

Products, norms, activations and dropouts treat each token alone, so what they spend on padding is for nothing: a tenth
to a fifth of a training batch. Attention puts the tokens back into rows with their padding, since whole products are
faster on a CPU than one for each text (see `components.compute.attention`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

ENCODERS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Models whose layers take states and a mask alone: positions are in the embeddings."""

LEAST = 1 / 32
"""With less of a batch in padding, moving the tokens takes more time than padding does."""


def pack_layers(model: Any) -> None:
    """Have the layers of a pre-trained encoder run on packed tokens; it must have the attention of `fast_cpu`.

    The states that come out are as before, but for those of padding, which are 0. A pass that asks for the hidden
    states of all layers is not packed. Other models stay as they are.
    """
    if model.config.model_type not in ENCODERS or getattr(model.config, "is_decoder", False):
        return
    for stack in model.children():
        if isinstance(layers := getattr(stack, "layer", None), nn.ModuleList):
            layers[0].register_forward_pre_hook(_pack, with_kwargs=True)
            layers[-1].register_forward_hook(_unpack, with_kwargs=True)


def is_packed(states: Tensor, mask: Tensor) -> bool:
    """Check whether states (1, ...) are those of the N texts of a mask (N, 1, L, L)."""
    return len(mask) > 1 == len(states)


def packed(rows: Tensor, mask: Tensor) -> Tensor:
    """Pack the tokens of (N, L, ...) rows into (1, T, ...)."""
    return rows.flatten(0, 1).index_select(0, _tokens(mask)).unsqueeze(0)


def unpacked(tokens: Tensor, mask: Tensor) -> Tensor:
    """Unpack (1, T, ...) tokens into (N, L, ...) rows, 0 for padding."""
    count, length = len(mask), mask.shape[-1]
    rows = tokens.new_zeros(count * length, *tokens.shape[2:])
    return rows.index_copy(0, _tokens(mask), tokens[0]).unflatten(0, (count, length))


def _tokens(mask: Tensor) -> Tensor:
    """Return the places of tokens (T,) among all rows' places. All tokens of a text see what its first place sees."""
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
