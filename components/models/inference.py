"""Models that are only asked: in another precision, and on a CPU with what surrounds a matrix product done inside it.

Between two matrix products of a transformer stand a bias, an activation, a sum: little arithmetic, but each reads and
writes a whole batch of states, and on a CPU that is a third of the time. oneDNN adds biases and activates while a
product's result is still in the cache; torch offers that to its compiler, and here it is asked for directly. Sums,
norms and embeddings stay in fp32, as in torch's autocast: that costs next to nothing and more than halves what rounding
does to a vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from components import attention
from components.clock import at
from components.cross_encoder import CrossEncoder
from components.dual_encoder import DualEncoder
from components.floor import Products
from components.processor import has_amx
from components.text import Batch, to_device, token_batches

PACKED_FOR = 4_096
"""Rows that weights are laid out for; other numbers of rows give the same results."""


Model = TypeVar("Model", bound=DualEncoder | CrossEncoder)


class Inference:
    """A model that is asked about many texts or pairs: in passes of similar lengths, beside the time of the floor."""

    def __init__(
        self, model: DualEncoder | CrossEncoder, *, cuda: bool, precision: str, batch_tokens: int
    ) -> None:  # fmt: skip
        self.device, self.batch_tokens = torch.device("cuda" if cuda else "cpu"), batch_tokens
        self.products = Products(model.encoder(), first_only=first_only(model))
        self._rate = self.products.rate(tokens=batch_tokens, device=self.device.type, precision=precision)
        self._model = ready(model, device=self.device, precision=precision)

    def __call__(
        self, lengths: np.ndarray, batch: Callable[[np.ndarray], Batch], *side: str
    ) -> tuple[np.ndarray, dict[str, float]]:
        """What the model says of N texts, fp32 (N, ...), and how long that took and could not have been shorter.

        `lengths` (N,) are their tokens, special ones included, and `batch` puts some of them together.
        """
        began = time.perf_counter()
        batches, found = token_batches(lengths, self.batch_tokens), []
        with torch.inference_mode():
            for chosen in batches:
                with at("files"):
                    texts = batch(chosen)
                found.append(self._model(to_device(texts, self.device), *side))
            told = torch.cat(found).cpu().numpy()  # fetched once: a GPU goes on while its next batch is put together
        told = told[np.argsort(np.concatenate(batches))]
        floor = self.products.operations(lengths) / self._rate
        return told, {"model_seconds": time.perf_counter() - began, "floor_seconds": floor}


def ready(model: Model, *, device: torch.device, precision: str) -> Model:
    """A model to ask, on its device. What makes a vector or score of the last states stays in fp32."""
    model.eval().to(device)
    if precision == "bf16" and not (device.type == "cpu" and fuse(model, first_only=first_only(model))):
        model.lowered(torch.bfloat16)
    return model


def first_only(model: DualEncoder | CrossEncoder) -> bool:
    """Whether all that counts of the last states is the first token's."""
    return model.config.pooling == "cls"


def fuse(model: nn.Module, *, first_only: bool = False) -> int:
    """Replace every layer that is one of BERT's by its fused form, where this processor has it; how many there were.

    With `first_only` last layers give the state of the first token alone.
    """
    if not can_fuse():
        return 0
    count = 0
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for place, layer in enumerate(module):
                if _is_berts(layer):
                    last = place == len(module) - 1
                    module[place] = FusedLayer(layer, first_only=first_only and last)
                    count += 1
    return count


def can_fuse() -> bool:
    """Whether torch was built with oneDNN, and this processor has what its products in bf16 need."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_berts(layer: Any) -> bool:
    """Whether a layer computes what BERT's does: that of BERT itself, RoBERTa, ELECTRA and others."""
    try:
        parts = [layer.attention.self.query, layer.attention.self.key, layer.attention.self.value]
        parts += [layer.attention.output.dense, layer.intermediate.dense, layer.output.dense]
        norms = [layer.attention.output.LayerNorm, layer.output.LayerNorm]
        activation = layer.intermediate.intermediate_act_fn
        other = layer.is_decoder or layer.add_cross_attention
    except AttributeError:
        return False
    plain = all(type(part) is nn.Linear and part.bias is not None for part in parts)
    return plain and all(type(norm) is nn.LayerNorm for norm in norms) and _is_gelu(activation) and not other


def _is_gelu(activation: Any) -> bool:
    """Whether it is the exact form, which is what oneDNN computes."""
    at = torch.linspace(-3, 3, 7)
    return bool(torch.equal(activation(at), functional.gelu(at)))


class FusedLayer(nn.Module):
    """A layer of BERT's whose products and attention are in bf16, and the two sums and norms between in fp32.

    With `first_only` it gives the state of a text's first token alone, which takes only keys and values of the others:
    five sixths less arithmetic.
    """

    def __init__(self, layer: Any, *, first_only: bool = False) -> None:
        super().__init__()
        own, after = layer.attention.self, layer.attention.output
        self._heads = own.num_attention_heads
        together = [own.key, own.value] if first_only else [own.query, own.key, own.value]
        self._attended = _Product(*together)
        self._asking = _Product(own.query) if first_only else None
        self._mixed, self._mixed_norm = _Product(after.dense), after.LayerNorm
        self._up, self._down = _Product(layer.intermediate.dense), _Product(layer.output.dense)
        self._norm = layer.output.LayerNorm

    def forward(self, states: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """(N, L, h) states and the (N, 1, L or 1, L) mask that transformers makes, to (N, L or 1, h) states, fp32."""
        count, length, width = states.shape
        shape = (count, length, -1, self._heads, width // self._heads)
        rows = states.reshape(-1, width)
        *query, key, value = self._attended(rows).view(shape).permute(2, 0, 3, 1, 4).unbind()
        if self._asking is not None:
            length, rows = 1, states[:, 0].contiguous()
            query = [self._asking(rows).view(count, 1, self._heads, -1).transpose(1, 2)]
        mixed = attended(query[0], key, value, mask)
        # Summed in place: of two precisions torch's sum would cast one and then make a third tensor.
        rows = self._mixed_norm(self._mixed(mixed.transpose(1, 2).reshape(-1, width)).float().add_(rows))
        rows = self._norm(self._down(self._up(rows, "gelu")).float().add_(rows))
        return rows.view(count, length, width)


def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of queries (N, H, Q, d) to keys and values (N, H, L, d) under a layer's mask: (N, H, Q, d), bf16."""
    if mask is not None:
        mask = mask[:, :, :1]  # all tokens look at the same ones: a row is read faster than a square
        if not mask.is_floating_point():
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        mask = mask.to(query.dtype)
    if has_amx():  # whole products were compared with torch's own on processors without it alone
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return torch.matmul(attention.weights(query, key, mask, query.shape[-1] ** -0.5), value)


class _Product:
    """Linear layers side by side as one product, with what follows it."""

    def __init__(self, *parts: nn.Linear) -> None:
        weight = torch.cat([part.weight for part in parts]).detach().bfloat16()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
        self._bias = torch.cat([part.bias for part in parts]).detach().float()  # added before the result is rounded

    def __call__(self, rows: Tensor, activation: str = "none") -> Tensor:
        how = "none" if activation == "gelu" else ""  # not the one by tanh
        return torch.ops.mkldnn._linear_pointwise(rows.bfloat16(), self._weight, self._bias, activation, [], how)
