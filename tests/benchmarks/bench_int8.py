"""Would products in int8 pay where the processor has VNNI? One layer's time by turns, and what rounding does to
rankings.

make bench ARGS="-k int8"

`dynamic` scales each token's states by their largest number, in torch's operations, as no product of oneDNN's that
torch offers takes a scale a row. `static` has one scale a product, fixed beforehand from texts of random tokens; a
channel's share of the range is moved into the weights (Xiao et al., 2023, SmoothQuant), and what the activation makes
is rounded inside the product. Weights have a scale a column in both. In the rankings the same rounding is done in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from components.compute.processor import configure_process
from components.models.dual_encoder import DualEncoder
from components.models.inference import FusedLayer, attended
from tests.benchmarks.conftest import LENGTH, ROOT, World
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.table import machine, write

TEXTS, DEPTH, PASSES = 32, 100, 4
"""Texts of a pass, documents of a ranking, passes of a turn."""


def test_int8(few: World) -> None:
    if few.device == "cuda" or not torch.cpu.get_capabilities().get("avx512_vnni"):
        pytest.skip("no VNNI")
    configure_process(1)
    model = DualEncoder.load(few.retriever / "model").eval()
    layer = model.base_model.encoder.layer[0]
    states, mask = torch.randn(TEXTS, LENGTH, 384), torch.zeros(TEXTS, 1, 1, LENGTH)
    kind = torch.bfloat16 if few.precision == "bf16" else torch.float32
    plain = FusedLayer(layer, kind)

    def passes(one: nn.Module) -> Callable[[], None]:
        def several() -> None:
            with torch.inference_mode():
                for _ in range(PASSES):
                    one(states, mask)

        return several

    job = f"one layer, {TEXTS} texts of {LENGTH} tokens"
    table = [
        by_turns(passes(rounding(layer, kind)), passes(plain), pairs=9).row(
            f"{job}, int8, {name}", few.precision, "texts/s", TEXTS * PASSES, 1.2
        )
        for name, rounding in (("dynamic", Dynamic), ("static", Static))
    ]
    lines = [*rankings(few, model), "One thread.", machine(ROOT)]
    write("Products in int8", 'make bench ARGS="-k int8"', HEAD, table, lines)


class Product:
    """Linear layers side by side: states in 8 bits without a sign to the product, in `kind` or in 8 bits again."""

    def __init__(self, kind: torch.dtype, *parts: nn.Linear) -> None:
        self.kind = kind
        weight = torch.cat([part.weight for part in parts]).detach()
        self.bias = torch.cat([part.bias for part in parts]).detach().float()
        self._scales = weight.abs().amax(1) / 127
        rounded = (weight / self._scales[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, [TEXTS * LENGTH, weight.shape[1]])
        self._zeros = torch.zeros(len(weight), dtype=torch.long)

    def __call__(
        self, rows: Tensor, scale: float, zero: int, *, bias: bool = True, out: Any = None, activation: str = "none",
        out_scale: float = 1.0, out_zero: int = 0,
    ) -> Tensor:  # fmt: skip
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, scale, zero, self._weight, self._scales, self._zeros, self.bias if bias else None, out_scale,
            out_zero, out or self.kind, activation, [], "none" if activation == "gelu" else "",
        )  # fmt: skip
        return result


class Static(nn.Module):
    """A layer of BERT's with fixed scales. Their values do not change its time, and are made up here."""

    def __init__(self, layer: Any, kind: torch.dtype) -> None:
        super().__init__()
        own, after = layer.attention.self, layer.attention.output
        self._heads = own.num_attention_heads
        self._together, self._mixed = Product(kind, own.query, own.key, own.value), Product(kind, after.dense)
        self._up, self._down = Product(kind, layer.intermediate.dense), Product(kind, layer.output.dense)
        self._norms = after.LayerNorm, layer.output.LayerNorm

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(N, L, h) states to (N, L, h) states."""
        count, length, width = states.shape
        rows = states.reshape(-1, width)
        together = self.product(self._together, rows).view(count, length, 3, self._heads, -1)
        mixed = attended(*together.permute(2, 0, 3, 1, 4).unbind(), mask).transpose(1, 2).reshape(-1, width)
        rows = self._norms[0](self.product(self._mixed, mixed).float().add_(rows))
        return self._norms[1](self.twice(rows).float().add_(rows)).view(count, length, width)

    def product(self, product: Product, rows: Tensor) -> Tensor:
        """Round the rows and multiply."""
        return product(torch.add(128.5, rows, alpha=1 / 0.03).clamp_(0, 255).to(torch.uint8), 0.03, 128)

    def twice(self, rows: Tensor) -> Tensor:
        """Up, activated, and down again, without leaving 8 bits."""
        rounded = torch.add(128.5, rows, alpha=1 / 0.03).clamp_(0, 255).to(torch.uint8)
        up = self._up(rounded, 0.03, 128, out=torch.uint8, activation="gelu", out_scale=0.02, out_zero=9)
        return self._down(up, 0.02, 9)


class Dynamic(Static):
    """With a scale a token."""

    def product(self, product: Product, rows: Tensor) -> Tensor:
        """Round the rows, multiply, scale back."""
        scales = rows.abs().amax(-1, keepdim=True) / 127
        rounded = (rows / scales).add_(128.5).to(torch.uint8)
        bias, scales = product.bias.to(product.kind), scales.to(product.kind)
        return torch.addcmul(bias, product(rounded, 1.0, 128, bias=False), scales)

    def twice(self, rows: Tensor) -> Tensor:
        """Up, activated, and down again."""
        return self.product(self._down, functional.gelu(self.product(self._up, rows)))


class Rounded(nn.Module):
    """A linear layer in fp32 whose inputs and weights are rounded to 8 bits as `how` says."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.how, self.low, self.high = linear, "fp32", 0.0, 0.0
        self.channels = torch.full((linear.in_features,), 1e-3)

    def forward(self, states: Tensor) -> Tensor:
        """As the linear layer; `how` is "look" to learn the range of the states."""
        if self.how == "look":
            self.channels = torch.maximum(self.channels, states.abs().flatten(0, -2).amax(0))
            self.low, self.high = min(self.low, float(states.min())), max(self.high, float(states.max()))
        if self.how in ("look", "fp32"):
            return self.linear(states)
        weight = self.linear.weight
        if self.how == "dynamic":
            scale: Any = states.abs().amax(-1, keepdim=True) / 127
        elif self.linear.in_features > self.linear.out_features:  # what the activation made has no norm before it
            scale, zero = (self.high - self.low) / 255, round(255 * -self.low / (self.high - self.low))
            states = (states / scale).round().clamp(-zero, 255 - zero) * scale
            return functional.linear(states, eight_bits(weight), self.linear.bias)
        else:
            share = (self.channels / weight.abs().amax(0).clamp_min(1e-5)).sqrt()
            states, weight, scale = states / share, weight * share, (self.channels / share).max() / 127
        states = (states / scale).round().clamp(-128, 127) * scale
        return functional.linear(states, eight_bits(weight), self.linear.bias)


def eight_bits(weight: Tensor) -> Tensor:
    """Weights rounded to 8 bits, with a scale for each output."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scales).round() * scales


def rankings(few: World, model: DualEncoder) -> list[str]:
    """What both kinds of rounding do to rankings, and bf16 beside them."""
    from sentence_transformers import SentenceTransformer

    whole = SentenceTransformer(str(few.retriever / "model"), device="cpu")
    table = pq.read_table(few.data / "qrels.parquet").to_pydict()
    names = pq.read_table(few.data / "documents.parquet", columns=["doc_id"])["doc_id"].to_pylist()
    asked = pq.read_table(few.data / "queries.parquet", columns=["query_id"])["query_id"].to_pylist()
    of = dict(zip(table["query_id"], table["doc_id"], strict=True))
    right = np.asarray([names.index(of[name]) for name in asked])
    texts, queries = few.documents(), few.queries()

    def found() -> tuple[np.ndarray, np.ndarray]:
        vectors, others = (whole.encode(some, show_progress_bar=False) for some in (texts, queries))
        scores = others @ vectors.T
        ranks = 1 + (scores > scores[np.arange(len(right)), right][:, None]).sum(1)
        return np.argsort(-scores, 1)[:, :DEPTH], np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)

    layers = [module for module in whole.modules() if isinstance(module, nn.ModuleList)]
    expected, quality = found()
    lines = [f"{len(texts):,} documents, {len(queries):,} queries with one right document each. fp32: nDCG@10 "
             f"{quality.mean():.4f}."]  # fmt: skip
    results = {}
    with torch.autocast("cpu", torch.bfloat16):
        results["bf16"] = found()
    rounded = [one for layer in layers for one in replaced(layer)]
    set_how(rounded, "look")
    ids = torch.from_numpy(np.random.default_rng(0).integers(1_000, 30_000, (TEXTS, LENGTH)))
    with torch.inference_mode():
        whole[0].auto_model(input_ids=ids, attention_mask=torch.ones_like(ids))
    for how in ("dynamic", "static"):
        set_how(rounded, how)
        results[f"int8, {how}"] = found()
    for name, (places, values) in results.items():
        shared = median(len(set(a) & set(b)) / DEPTH for a, b in zip(places, expected, strict=True))
        first = float((places[:, 0] == expected[:, 0]).mean())
        lines.append(f"{name}: of a query's first {DEPTH} documents {shared:.1%} (median) are fp32's, and {first:.1%} "
                     f"of the first ones; nDCG@10 {values.mean():.4f}.")  # fmt: skip
    return lines


def replaced(module: nn.Module) -> list[Rounded]:
    """Put rounding layers in the place of linear ones."""
    found = []
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            found.append(Rounded(child))
            setattr(module, name, found[-1])
        else:
            found += replaced(child)
    return found


def set_how(layers: list[Rounded], how: str) -> None:
    """Set how layers round."""
    for layer in layers:
        layer.how = how
