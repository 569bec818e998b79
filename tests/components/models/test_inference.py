"""Models made ready to be asked give the numbers of the models that they were."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, ConvBertConfig, RemBertConfig, RoFormerConfig

from sparring.components.compute.precision import computed, has_int8
from sparring.components.data.batches import Batch
from sparring.components.models import inference
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from tests.support import toy
from tests.support.processors import NEEDS_BF16, NEEDS_VNNI

CPU = torch.device("cpu")


def a_batch(rows: int = 6, width: int = 24) -> Batch:
    """Texts of several lengths, one of them full and one of a single token; all of one segment."""
    rng = np.random.default_rng(0)
    lengths = torch.tensor([width, 1, *rng.integers(2, width, rows - 2).tolist()])
    mask = (torch.arange(width) < lengths[:, None]).long()
    ids = torch.from_numpy(rng.integers(5, 40, (rows, width)))
    return Batch(ids * mask, mask, torch.zeros_like(ids))


def asked(model: DualEncoder, batch: Batch) -> torch.Tensor:
    with torch.inference_mode():
        return model(batch, "document")


@NEEDS_BF16
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_fused_layers_are_as_close_to_fp32_as_plain_ones_in_bf16(toys: Path, kind: str, pooling: str) -> None:
    """Those of the last layer make the first token's state alone where nothing else counts."""
    folder = toy.write_encoder(toys / f"fused {kind} {pooling}", kind)
    model = DualEncoder.start(toy.retriever_config(folder, pooling=pooling, similarity="cosine"))[0].eval()
    batch = a_batch()
    exact = asked(model, batch)
    plain = asked(copy.deepcopy(model).to_dtype(torch.bfloat16), batch)
    ready = inference.ready(copy.deepcopy(model), device=CPU, precision="bf16")
    layers = [part for part in ready.modules() if isinstance(part, inference.FusedLayer)]
    assert len(layers) == toy.SIZES["num_hidden_layers"]
    with torch.inference_mode():
        last = ready.tower("document")(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
    assert last.shape[1] == (1 if pooling == "cls" else batch.ids.shape[1])
    fused = asked(ready, batch)
    assert fused.dtype == torch.float32
    assert (fused - exact).abs().max() <= 1.5 * (plain - exact).abs().max()
    assert (fused * exact).sum(-1).min() > 0.9995


@NEEDS_BF16
def test_two_towers_are_both_fused(encoder: Path) -> None:
    model = DualEncoder.start(toy.retriever_config(encoder, towers="separate"))[0]
    inference.ready(model, device=CPU, precision="bf16")
    assert all(isinstance(m, inference.FusedLayer) for tower in model.towers.values() for m in tower.encoder.layer)


@NEEDS_BF16
@pytest.mark.parametrize("pooling", ["cls", "first", "mean", "maxsim"])
def test_a_rankers_scores_stay_fine(encoder: Path, pooling: str) -> None:
    """What makes the score is in fp32, so that documents hardly tie."""
    model, batch = CrossEncoder.start(toy.ranker_config(encoder, pooling=pooling))[0].eval(), a_batch()
    batch = batch._replace(segments=(torch.arange(batch.ids.shape[1]) % 2) * batch.mask)
    with torch.inference_mode():
        exact = model(batch)
        result = inference.ready(model, device=CPU, precision="bf16")(batch)
    torch.testing.assert_close(result, exact, atol=2e-2, rtol=2e-2)
    assert len(set(result.tolist())) == len(result)
    assert result.bfloat16().float().ne(result).any()


def test_models_of_other_families_stay_as_they_are(toys: Path) -> None:
    folder = toy.write_encoder(toys / "fused distilbert", "distilbert")
    model = DualEncoder.start(toy.retriever_config(folder, dropout=None))[0].eval()
    assert inference.fuse(model, "bf16") == 0
    plain = asked(copy.deepcopy(model).to_dtype(torch.bfloat16), a_batch())
    assert torch.equal(asked(inference.ready(model, device=CPU, precision="bf16"), a_batch()), plain)


def test_a_layer_that_only_looks_like_berts_is_not_fused() -> None:
    """RoFormer turns queries and keys by their positions, RemBERT takes a tuple, ConvBERT's attention is narrower."""
    shape = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "hidden_act": "gelu",
    }
    for config in (
        RoFormerConfig(embedding_size=16, **shape),
        RemBertConfig(input_embedding_size=16, **shape),
        ConvBertConfig(embedding_size=16, **shape),
    ):
        assert inference.fuse(AutoModel.from_config(config), "fp32") == 0
    assert inference.fuse(AutoModel.from_config(BertConfig(**shape)), "fp32") == 2


def test_another_activation_or_a_decoder_is_not_taken_for_berts(encoder: Path) -> None:
    def layer() -> nn.Module:
        return DualEncoder.start(toy.retriever_config(encoder))[0].towers["shared"].encoder.layer[0]

    assert inference._is_berts(layer())
    for second in (nn.ReLU(), nn.GELU(approximate="tanh")):
        changed = layer()
        changed.intermediate.intermediate_act_fn = second
        assert not inference._is_berts(changed)
    decoder = layer()
    decoder.is_decoder = True
    assert not inference._is_berts(decoder)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
def test_in_fp32_nothing_changes_but_the_order_of_sums(toys: Path, kind: str, pooling: str) -> None:
    folder = toy.write_encoder(toys / f"fp32 {kind} {pooling}", kind)
    model = DualEncoder.start(toy.retriever_config(folder, pooling=pooling, similarity="cosine"))[0].eval()
    exact = asked(copy.deepcopy(model), a_batch())
    result = asked(inference.ready(model, device=CPU, precision="fp32"), a_batch())
    torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-6)


@NEEDS_VNNI
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_in_int8_vectors_stay_near(toys: Path, kind: str, pooling: str) -> None:
    folder = toy.write_encoder(toys / f"int8 {kind} {pooling}", kind)
    model = DualEncoder.start(toy.retriever_config(folder, pooling=pooling, similarity="cosine"))[0].eval()
    exact = asked(copy.deepcopy(model), a_batch())
    result = asked(inference.ready(model, device=CPU, precision="int8"), a_batch())
    assert float((result * exact).sum(-1).min()) > 0.998
    assert (result != exact).any(1).all()


@NEEDS_VNNI
def test_what_cannot_be_in_int8_is_computed_as_bf16_would_be(toys: Path, encoder: Path) -> None:
    """A model without layers of BERT's, and a GPU."""
    folder = toy.write_encoder(toys / "int8 distilbert", "distilbert")
    rest = DualEncoder.start(toy.retriever_config(folder, dropout=None))[0]
    berts = DualEncoder.start(toy.retriever_config(encoder))[0]
    plain = computed("bf16", "cpu")
    assert [inference.precision_of(item, "int8", "cpu") for item in (rest, berts)] == [plain, "int8"]
    assert inference.precision_of(berts, "fp32", "cpu") == "fp32"
    assert not has_int8("cuda")
