"""A model to begin from, as every later step loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.workflows.steps.start import start
from tests.support import toy
from tests.support.errors import refused


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_start_retriever(tmp_path: Path, encoder: Path, towers: str) -> None:
    from sparring.components.data.tokenizers import load_tokenizer
    from sparring.components.models.dual_encoder import DualEncoder

    summary = start(tmp_path, toy.INLINE, config=toy.retriever_config(encoder, towers=towers, layers=1))
    model = DualEncoder.load(tmp_path / "model")
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    assert summary["tokenizer"] == "encoder"
    assert load_tokenizer(tmp_path / "model").tokenize("bara nami") == ["bara", "nami"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_start_ranker_has_the_same_head_wherever_it_is_made(tmp_path: Path, encoder: Path, pooling: str) -> None:
    found: list[dict[str, Any]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(start(tmp_path / name, toy.INLINE, config=toy.ranker_config(encoder, pooling=pooling)))
    assert found[0] == found[1]
    a, b = (sorted((tmp_path / name / "model").rglob("*.safetensors")) for name in ("a", "b"))
    for one, other in zip(a, b, strict=True):
        first, second = load_file(one), load_file(other)
        assert all(first[key].equal(second[key]) for key in first)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_two_towers_begin_from_one_trained_encoder(tmp_path: Path, encoder: Path, weights: str) -> None:
    """`weights: random` says what the encoder began from, and not that the towers forget what it has learnt."""
    from sparring.components.models.dual_encoder import DualEncoder

    for name in ("shared", "separate"):
        (tmp_path / name).mkdir()
    own = {"weights": weights, "layers": 1}
    start(tmp_path / "shared", toy.INLINE, config=toy.retriever_config(encoder, towers="shared", **own))
    trained = DualEncoder.load(tmp_path / "shared" / "model")
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 0.25
    trained.save(tmp_path / "shared" / "model", tmp_path / "shared" / "tokenizer")
    config = toy.retriever_config(encoder, towers="separate", projection=4, projections="alike", **own)
    start(tmp_path / "separate", toy.INLINE, config=config, encoder=tmp_path / "shared")
    model = DualEncoder.load(tmp_path / "separate" / "model")
    assert (model.config.towers, model.config.weights, model.config.model) == ("separate", weights, str(encoder))
    assert model.tower("query") is not model.tower("document")
    theirs = trained.tower("query").state_dict()
    for side in ("query", "document"):
        own_weights = model.tower(side).state_dict()
        assert own_weights.keys() == theirs.keys()
        assert all(theirs[key].equal(own_weights[key]) for key in theirs)


def test_done_again_on_the_same_place_it_is_the_same(tmp_path: Path, encoder: Path) -> None:
    config = toy.ranker_config(encoder, pooling="mean")
    assert start(tmp_path, toy.INLINE, config=config) == start(tmp_path, toy.INLINE, config=config)


@pytest.mark.parametrize(("kind", "most"), [("bert", 96), ("roberta", 94)])
def test_a_model_that_cannot_read_so_much_is_refused(toys: Path, tmp_path: Path, kind: str, most: int) -> None:
    encoder = toy.write_encoder(tmp_path / "encoder", kind)
    fits = {"query_tokens": 8, "document_tokens": most}
    start(tmp_path, toy.INLINE, config=toy.retriever_config(encoder, **fits))
    with refused("document_tokens", "too-many-tokens"):
        start(tmp_path, toy.INLINE, config=toy.retriever_config(encoder, **{**fits, "document_tokens": most + 1}))
    with refused("pair_tokens", "too-many-tokens"):
        start(tmp_path, toy.INLINE, config=toy.ranker_config(encoder, pair_tokens=200))


def test_a_model_that_is_not_there_is_a_users_mistake(tmp_path: Path) -> None:
    with refused("model", "missing-folder"):
        start(tmp_path, toy.INLINE, config=toy.retriever_config("./nowhere"))
