"""Inference: vectors and scores from trained models, in batches of similar lengths and a chosen precision.

On a CPU, layers are fused. Between two matrix products of a transformer come a bias, an activation and a sum. They need
little arithmetic, but each reads and writes a whole batch of states, which takes a third of the time on a CPU. oneDNN
adds the bias and applies the activation while the product is still in the cache. Sums, norms and embeddings stay in
fp32, as in torch's autocast. That costs almost nothing, and more than halves the rounding error of a vector.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components import progress
from sparring.components.compute import attention
from sparring.components.compute.linear_products import has_products, linear_product
from sparring.components.compute.precision import DTYPES, computed
from sparring.components.compute.processor import configure_process, has_amx
from sparring.components.compute.roofline import MatrixProducts
from sparring.components.data.batches import Batch, pinned, to_device, token_batches
from sparring.components.data.template import Template
from sparring.components.data.tokens import Tokens
from sparring.components.models import adapters
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.text_encoder import TextEncoder
from sparring.components.timing import timed

Model = TypeVar("Model", bound=TextEncoder | CrossEncoder)


class Reading(Protocol):
    """A reader of table rows as model inputs."""

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of some rows, including special tokens: (N,)."""

    def batch(self, rows: np.ndarray) -> Batch:
        """Return some rows as a batch of model inputs."""


class Texts(NamedTuple):
    """The inputs of a retriever. A row is a text."""

    template: Template
    tokens: Tokens
    limit: int

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of some texts, including special tokens: (N,)."""
        return self.template.lengths(self.tokens, rows, self.limit)

    def batch(self, rows: np.ndarray) -> Batch:
        """Return some texts with special tokens, as a padded batch."""
        return self.template.texts(self.tokens, rows, self.limit)


class Pairs(NamedTuple):
    """The inputs of a ranker. Rows (N, 2) are a query and a document."""

    template: Template
    queries: Tokens
    documents: Tokens
    limit: int

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of some pairs, including special tokens: (N,)."""
        return self.template.pair_lengths(self.queries, self.documents, rows, self.limit)

    def batch(self, rows: np.ndarray) -> Batch:
        """Return some pairs with special tokens, as a padded batch."""
        return self.template.pairs(self.queries, self.documents, rows, self.limit)


class Inputs(NamedTuple):
    """Prepared inputs of N rows."""

    lengths: np.ndarray
    """Number of tokens of each row: (N,)."""
    chosen: list[np.ndarray]
    """Positions of each batch's rows."""
    batches: Iterable[Batch]
    """Batches in the same order. They can be read once."""


class Inference:
    """A saved model for inference on many rows, on a GPU or on the CPU with a number of threads."""

    def __init__(
        self,
        kind: type[TextEncoder] | type[CrossEncoder],
        folder: Path,
        *,
        precision: str,
        batch_tokens: int,
        cuda: bool,
        threads: int,
        merge: bool = True,
    ) -> None:
        """Load the model from a folder.

        With `merge`, adapters are merged into copies of the weights, which is fastest. Otherwise all models of the
        process share the frozen weights under their adapters.
        """
        configure_process(threads)
        self.device, self.batch_tokens = torch.device("cuda" if cuda else "cpu"), batch_tokens
        model: Any = kind.load(folder, frozen=True)
        if merge:
            adapters.merge(model)
        self._precision = precision_of(model, precision, self.device.type)
        if not merge:
            adapters.share(model, self.device, DTYPES[self._precision])
        self.config = model.config
        self.dimensions = getattr(model, "dimensions", None)
        self.products = MatrixProducts(model.base_model, first_only=first_only(model))
        self._model = ready(model, device=self.device, precision=self._precision)

    def ask(self, reading: Reading, rows: np.ndarray, *side: str) -> np.ndarray:
        """Compute the model's output for N rows: (N, ...) in fp32. A retriever also needs `side`: query or document."""
        return self.outputs(self.prepare(reading, rows), *side)

    def prepare(self, reading: Reading, rows: np.ndarray) -> Inputs:
        """Return the batches of N rows. On a GPU they are assembled now, in memory that the GPU reads from directly.

        On a CPU each batch is assembled when its turn comes, since nothing would be gained.
        """
        lengths = reading.lengths(rows)
        chosen = token_batches(lengths, self.batch_tokens)
        batches: Iterable[Batch] = (reading.batch(rows[part]) for part in chosen)
        if self.device.type == "cuda":
            batches = [pinned(batch) for batch in batches]
        return Inputs(lengths, chosen, batches)

    def outputs(self, inputs: Inputs, *side: str) -> np.ndarray:
        """Compute the model's output for prepared inputs: (N, ...) in fp32."""
        outputs, batches = [], iter(inputs.batches)
        with torch.inference_mode():
            for chosen in inputs.chosen:
                with timed("files"):
                    batch = next(batches)
                outputs.append(self._model(to_device(batch, self.device), *side))
                progress.report(len(chosen))
            # Fetch outputs once at the end, so that a GPU computes while the next batch is assembled.
            values: np.ndarray = torch.cat(outputs).cpu().numpy()
        return values[np.argsort(np.concatenate(inputs.chosen))]


class TimedInference(Inference):
    """Inference that measures its time and compares it with the processor's minimum for the matrix products."""

    def __init__(
        self, kind: type[TextEncoder] | type[CrossEncoder], folder: Path, *, precision: str, **options: Any
    ) -> None:
        super().__init__(kind, folder, precision=precision, **options)
        self.rate = self.products.rate(tokens=self.batch_tokens, device=self.device.type, precision=self._precision)

    def timed(self, reading: Reading, rows: np.ndarray, *side: str) -> tuple[np.ndarray, dict[str, float]]:
        """Return the output of `ask`, with the measured seconds and the minimum by the processor's peak rate."""
        return self.timed_outputs(self.prepare(reading, rows), *side)

    def timed_outputs(self, inputs: Inputs, *side: str) -> tuple[np.ndarray, dict[str, float]]:
        """Return the output of `outputs`, with the measured seconds and the minimum by the processor's peak rate."""
        began = time.perf_counter()
        values = self.outputs(inputs, *side)
        ideal = self.products.operations(inputs.lengths) / self.rate
        return values, {"model_seconds": time.perf_counter() - began, "roofline_seconds": ideal}


def precision_of(model: nn.Module, requested: str, device: str) -> str:
    """Return the precision of a model's products on a kind of device. Only fused layers support int8."""
    if requested == "int8" and not (has_products("int8") and any(_is_berts(part) for part in model.modules())):
        requested = "bf16"
    return computed(requested, device)


def ready(model: Model, *, device: torch.device, precision: str) -> Model:
    """Prepare a model for inference on a device. Its head and pooling stay in fp32."""
    model.eval().to(device)
    fused = device.type == "cpu" and fuse(model, precision, first_only=first_only(model))
    if precision == "bf16" and not fused:
        model.to_dtype(torch.bfloat16)
    return model


def first_only(model: TextEncoder | CrossEncoder) -> bool:
    """Return True if a model uses only the first token's state of the last layer."""
    return getattr(model.config, "pooling", None) in ("cls", "first")


def fuse(model: nn.Module, precision: str, *, first_only: bool = False) -> int:
    """Replace every BERT layer of a model by its fused form. Return the number of replaced layers.

    Nothing is replaced if the processor does not support products in this precision. With `first_only`, last layers
    compute only the state of the first token.
    """
    if not has_products(precision):
        return 0
    count, foreign = 0, set[nn.Module]()
    for part in model.modules():
        if getattr(getattr(part, "config", None), "model_type", BERTS[0]) not in BERTS:
            foreign.update(part.modules())
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList) and module not in foreign:
            for place, layer in enumerate(module):
                if _is_berts(layer):
                    last = place == len(module) - 1
                    module[place] = FusedLayer(layer, precision, first_only=first_only and last)
                    count += 1
    return count


BERTS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "ernie",
    "data2vec-text",
    "roc_bert",
    "bert-generation",
)
"""Model types whose layers work like BERT's. RemBERT, RoFormer and BigBird have modules with the same names, but with
additional inputs or outputs."""


def _is_berts(layer: Any) -> bool:
    """Return True if a layer computes the same as BERT's."""
    try:
        parts = [layer.attention.self.query, layer.attention.self.key, layer.attention.self.value]
        parts += [layer.attention.output.dense, layer.intermediate.dense, layer.output.dense]
        norms = [layer.attention.output.LayerNorm, layer.output.LayerNorm]
        activation = layer.intermediate.intermediate_act_fn
        decodes = layer.is_decoder or layer.add_cross_attention
    except AttributeError:
        return False
    plain = all(type(part) is nn.Linear and part.bias is not None for part in parts)
    return plain and all(type(norm) is nn.LayerNorm for norm in norms) and _is_gelu(activation) and not decodes


def _is_gelu(activation: Any) -> bool:
    """Return True if an activation is the exact GELU, which oneDNN computes."""
    points = torch.linspace(-3, 3, 7)
    return bool(torch.equal(activation(points), functional.gelu(points)))


class FusedLayer(nn.Module):
    """A BERT layer with fused operations.

    Matrix products are in `fp32`, `bf16` or `int8`, attention is in `fp32` or `bf16`, and sums and norms are in fp32.
    With `first_only` the layer computes only the state of a text's first token. It then needs only keys and values of
    the remaining tokens, which is five sixths less arithmetic.
    """

    def __init__(self, layer: Any, precision: str, *, first_only: bool = False) -> None:
        super().__init__()
        parts, after = layer.attention.self, layer.attention.output
        self._heads = parts.num_attention_heads
        together = [parts.key, parts.value] if first_only else [parts.query, parts.key, parts.value]
        self._attended = linear_product(precision, *together)
        self._asking = linear_product(precision, parts.query) if first_only else None
        self._mixed, self._mixed_norm = linear_product(precision, after.dense), after.LayerNorm
        self._up, self._down = (linear_product(precision, part.dense) for part in (layer.intermediate, layer.output))
        self._norm = layer.output.LayerNorm

    def forward(self, states: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """Map states (N, L, h) to states (N, L, h) in fp32, or (N, 1, h) with `first_only`.

        The mask is that of transformers: (N, 1, L, L) or (N, 1, 1, L).
        """
        count, length, width = states.shape
        shape = (count, length, -1, self._heads, width // self._heads)
        rows = states.reshape(-1, width)
        *query, key, value = self._attended(rows).view(shape).permute(2, 0, 3, 1, 4).unbind()
        if self._asking is not None:
            length, rows = 1, states[:, 0].contiguous()
            query = [self._asking(rows).view(count, 1, self._heads, -1).transpose(1, 2)]
        mixed = attended(query[0], key, value, mask)
        # Sum in place: for two precisions torch's sum would make a cast copy and a third tensor.
        rows = self._mixed_norm(self._mixed(mixed.transpose(1, 2).reshape(-1, width)).float().add_(rows))
        rows = self._norm(self._down(self._up(rows, gelu=True)).float().add_(rows))
        return rows.view(count, length, width)


def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention of queries (N, H, Q, d) to keys and values (N, H, L, d) under a layer's mask: (N, H, Q, d)."""
    if mask is not None:
        mask = mask[:, :, :1]  # the mask is the same for all queries, and a single row is read faster
        if not mask.is_floating_point():
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        mask = mask.to(query.dtype)
    if has_amx() or query.dtype == torch.float32:  # explicit products are only faster in bf16 without AMX
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return torch.matmul(attention.weights(query, key, mask, query.shape[-1] ** -0.5), value)
