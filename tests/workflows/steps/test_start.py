"""A model to begin from, as every later step loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.files import read_json
from sparring.workflows.steps.start import start, start_as_it_comes
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
    summaries: list[dict[str, Any]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        summaries.append(start(tmp_path / name, toy.INLINE, config=toy.ranker_config(encoder, pooling=pooling)))
    assert summaries[0] == summaries[1]
    a, b = (sorted((tmp_path / name / "model").rglob("*.safetensors")) for name in ("a", "b"))
    for file, twin in zip(a, b, strict=True):
        first, second = load_file(file), load_file(twin)
        assert all(first[key].equal(second[key]) for key in first)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_two_towers_begin_from_one_trained_encoder(tmp_path: Path, encoder: Path, weights: str) -> None:
    """`weights: random` says what the encoder began from, and not that the towers forget what it has learnt."""
    from sparring.components.models.dual_encoder import DualEncoder

    for name in ("shared", "separate"):
        (tmp_path / name).mkdir()
    options = {"weights": weights, "layers": 1}
    start(tmp_path / "shared", toy.INLINE, config=toy.retriever_config(encoder, towers="shared", **options))
    trained = DualEncoder.load(tmp_path / "shared" / "model")
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 0.25
    trained.save(tmp_path / "shared" / "model", tmp_path / "shared" / "tokenizer")
    config = toy.retriever_config(encoder, towers="separate", projection=4, projections="alike", **options)
    start(tmp_path / "separate", toy.INLINE, config=config, encoder=tmp_path / "shared")
    model = DualEncoder.load(tmp_path / "separate" / "model")
    assert (model.config.towers, model.config.weights, model.config.model) == ("separate", weights, str(encoder))
    assert model.tower("query") is not model.tower("document")
    tower_weights = trained.tower("query").state_dict()
    for side in ("query", "document"):
        own_weights = model.tower(side).state_dict()
        assert own_weights.keys() == tower_weights.keys()
        assert all(tower_weights[key].equal(own_weights[key]) for key in tower_weights)


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


# A model as it comes


@pytest.mark.parametrize(("most", "note"), [(512, False), (40, True)])
def test_an_encoder_as_it_comes_is_what_sentence_transformers_loads(
    tmp_path: Path, encoder: Path, most: int, note: bool
) -> None:
    from sentence_transformers import SentenceTransformer

    config = toy.retriever_config(
        encoder, pooling=None, similarity=None, query_tokens=None, document_tokens=None, dropout=None
    )
    summary = start_as_it_comes(tmp_path, toy.INLINE, config=config, most=most)
    expected, model = SentenceTransformer(str(encoder), device="cpu"), SentenceTransformer(str(tmp_path / "model"))
    texts = ["bara nami", "nami " * 70]
    limit = min(expected.max_seq_length or 0, most)
    assert read_json(tmp_path / "model" / MODEL_CONFIG)["document_tokens"] == model.max_seq_length == limit
    assert ("note" in summary) == (note and (expected.max_seq_length or 0) > most)
    expected.max_seq_length = limit
    wanted = expected.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(model.encode(texts), wanted, atol=1e-5)


def test_lengths_of_the_config_and_of_the_folder_count(tmp_path: Path, encoder: Path, retriever: Path) -> None:
    settings = read_json(retriever / "model" / MODEL_CONFIG)
    keys = {"pooling": None, "similarity": None, "dropout": None}
    for name, source, lengths, wanted in (
        ("folder", retriever / "model", (None, None), (settings["query_tokens"], settings["document_tokens"])),
        ("config", encoder, (9, None), (9, 20)),
    ):
        (tmp_path / name).mkdir()
        config = toy.retriever_config(source, query_tokens=lengths[0], document_tokens=lengths[1], **keys)
        start_as_it_comes(tmp_path / name, toy.INLINE, config=config, most=20)
        saved = read_json(tmp_path / name / "model" / MODEL_CONFIG)
        assert (saved["query_tokens"], saved["document_tokens"]) == tuple(min(length, 20) for length in wanted)


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
def test_a_reranker_as_it_comes_has_a_head(tmp_path: Path, encoder: Path, retriever: Path, pooling: str | None) -> None:
    """A new head would score at random."""
    for source in (encoder, retriever / "model"):
        config = toy.ranker_config(source, pooling=pooling, pair_tokens=None, dropout=None)
        with refused("model", "unsupported-model", "it has no head that scores a pair"):
            start_as_it_comes(tmp_path, toy.INLINE, config=config, most=512)


def test_a_reranker_as_it_comes_keeps_its_head(tmp_path: Path, encoder: Path) -> None:
    for name, options in {
        "cls": {"pooling": "cls"},
        "mean": {"pooling": "mean"},
        "maxsim": {"pooling": "maxsim"},
    }.items():
        source = toy.started(tmp_path / name, toy.ranker_config(encoder, **options)) / "model"
        (tmp_path / f"{name} again").mkdir()
        config = toy.ranker_config(source, pooling=None, pair_tokens=None, dropout=None)
        start_as_it_comes(tmp_path / f"{name} again", toy.INLINE, config=config, most=512)
        saved = [read_json(folder / "model" / MODEL_CONFIG) for folder in (tmp_path / name, tmp_path / f"{name} again")]
        assert saved[0]["pair_tokens"] == saved[1]["pair_tokens"]
        weights = [sorted((tmp_path / folder / "model").rglob("*.safetensors")) for folder in (name, f"{name} again")]
        for first, second in zip(*weights, strict=True):
            before, after = load_file(first), load_file(second)
            assert all(before[key].equal(after[key]) for key in before)


def test_a_language_model_as_it_comes_scores_by_a_token(tmp_path: Path) -> None:
    source = toy.write_encoder(tmp_path / "base", "mistral", head=True)
    options = {"true_token": "y", "false_token": "n", "template": "query: {query} document: {document}"}
    config = toy.ranker_config(source, pooling=None, pair_tokens=None, dropout=None, **options)
    start_as_it_comes(tmp_path, toy.INLINE, config=config, most=64)
    saved = read_json(tmp_path / "model" / MODEL_CONFIG)
    assert (saved["pooling"], saved["pair_tokens"], saved["true_token"]) == ("token", 64, "y")
    with refused("model", "unsupported-model", "it has no head that scores a pair"):
        start_as_it_comes(tmp_path, toy.INLINE, config=config.model_copy(update=dict.fromkeys(options)), most=64)
