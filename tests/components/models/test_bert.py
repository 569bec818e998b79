"""BERT as a model that is only asked gives the numbers of transformers' classes, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.components.data.batches import Batch
from sparring.components.models import bert, inference
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from tests.components.models.test_inference import a_batch
from tests.support import toy
from tests.support.processors import NEEDS_BF16


def batches() -> list[Batch]:
    """Padded texts, texts without padding, and pairs of texts."""
    padded = a_batch()
    full = Batch(padded.ids, torch.ones_like(padded.mask), padded.segments)
    halves = (torch.arange(padded.ids.shape[1]) > 7).long().expand_as(padded.ids)
    return [padded, full, Batch(padded.ids, padded.mask, halves)]


def saved(folder: Path, kind: Any, config: Any) -> Path:
    model, tokenizer = kind.start(config)
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    model.save(folder / "model", folder / "tokenizer")
    return folder / "model"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_retriever(encoder: Path, tmp_path: Path, towers: str, dtype: torch.dtype) -> None:
    options = {"pooling": "mean", "similarity": "cosine", "towers": towers}
    options |= {"share": ["embedder"], "projection": 8} if towers == "separate" else {}
    folder = saved(tmp_path, DualEncoder, toy.retriever_config(encoder, **options))
    expected = DualEncoder.load(folder).eval().to_dtype(dtype)
    actual = DualEncoder.load(folder, frozen=True).to_dtype(dtype)
    assert isinstance(actual.tower("query"), bert.Bert)
    with torch.inference_mode():
        for batch in batches():
            for side in ("query", "document"):
                assert torch.equal(actual(batch, side), expected(batch, side))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling", ["cls", "first", "mean", "maxsim"])
def test_a_ranker(encoder: Path, tmp_path: Path, pooling: str, dtype: torch.dtype) -> None:
    folder = saved(tmp_path, CrossEncoder, toy.ranker_config(encoder, pooling=pooling))
    expected = CrossEncoder.load(folder).eval().to_dtype(dtype)
    actual = CrossEncoder.load(folder, frozen=True).to_dtype(dtype)
    assert isinstance(actual.base_model, bert.Bert)
    with torch.inference_mode():
        for batch in batches():
            assert torch.equal(actual(batch), expected(batch))


@NEEDS_BF16
def test_its_layers_are_fused(encoder: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path, DualEncoder, toy.retriever_config(encoder, pooling="cls", similarity="dot"))
    expected, actual = (
        inference.ready(DualEncoder.load(folder, frozen=frozen), device=torch.device("cpu"), precision="bf16")
        for frozen in (False, True)
    )
    assert any(isinstance(part, inference.FusedLayer) for part in actual.modules())
    with torch.inference_mode():
        for batch in batches():
            assert torch.equal(actual(batch, "query"), expected(batch, "query"))


@pytest.mark.parametrize("kind", ["roberta", "electra", "distilbert"])
def test_other_models_are_read_by_transformers(toys: Path, tmp_path: Path, kind: str) -> None:
    config = toy.retriever_config(toy.write_encoder(toys / f"asked {kind}", kind), pooling="mean", similarity="dot")
    assert type(DualEncoder.load(saved(tmp_path, DualEncoder, config), frozen=True).tower("query")).__name__ != "Bert"


@pytest.mark.parametrize(
    "changed", [{"hidden_act": "relu"}, {"is_decoder": True}, {"position_embedding_type": "relative_key"}]
)
def test_so_are_other_forms_of_bert(encoder: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    folder = saved(tmp_path, DualEncoder, toy.retriever_config(encoder, pooling="mean", similarity="dot"))
    assert bert.encoder(folder) is not None
    assert bert.classifier(folder) is None
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**tree, **changed}))
    assert bert.encoder(folder) is None


def test_an_adapter_stays_over_its_base(encoder: Path, tmp_path: Path) -> None:
    config = toy.retriever_config(encoder, pooling="mean", similarity="dot", adapter={"rank": 2})
    folder = saved(tmp_path, DualEncoder, config)
    assert bert.encoder(folder) is None
    assert not isinstance(DualEncoder.load(folder, frozen=True).tower("query"), bert.Bert)
