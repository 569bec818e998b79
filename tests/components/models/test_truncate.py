"""Retrievers whose vectors are their first dimensions: in training, in files, and in sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.text_encoder import Side
from sparring.components.retrieval.kinds.dense import TEXTS, Dense
from tests.support import toy

SIDES: tuple[Side, Side] = ("query", "document")


def vectors(folder: Path, side: Side) -> torch.Tensor:
    """Ours of some texts."""
    tokenizer, model = load_tokenizer(folder), DualEncoder.load(folder).eval()
    tokens = Tokens.of(tokenizer(TEXTS, add_special_tokens=False)["input_ids"])
    with torch.inference_mode():
        return model(Template.of(tokenizer).texts(tokens, np.arange(len(TEXTS)), 24), side)


@pytest.fixture(scope="module")
def whole(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Retrievers of 32 dimensions, by their similarity."""
    folder = tmp_path_factory.mktemp("whole")
    return {
        similarity: toy.started(folder / similarity, toy.retriever_config(encoder, similarity=similarity)) / "model"
        for similarity in ("cosine", "dot")
    }


def cut(whole: Path, to: Path, **options: Any) -> Path:
    config = toy.retriever_config(whole, truncate=12, query_tokens=24, **options)
    return toy.started(to, config) / "model"


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_sentence_transformers_gives_the_same_by_the_path_alone(
    whole: dict[str, Path], tmp_path: Path, similarity: str, towers: str
) -> None:
    """Of cosine similarity it cuts vectors of length 1, whose cosines are the same."""
    from sentence_transformers import SentenceTransformer

    folder = cut(whole[similarity], tmp_path / "cut", towers=towers)
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["truncate_dim"] == 12
    expected = SentenceTransformer(str(folder), device="cpu")
    assert expected.truncate_dim == 12
    for side in SIDES:
        actual, full = vectors(folder, side), vectors(whole[similarity], side)
        first = full[:, :12]
        wanted = torch.nn.functional.normalize(first, dim=-1) if similarity == "cosine" else first
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)
        result = getattr(expected, f"encode_{side}")(TEXTS, convert_to_tensor=True, show_progress_bar=False)
        torch.testing.assert_close(result, first, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(expected.similarity(result, result), actual @ actual.T, rtol=1e-4, atol=1e-4)
    Dense().check_export(folder)  # what `export` does


def test_a_folder_says_it_again(whole: dict[str, Path], tmp_path: Path) -> None:
    """A retriever made of a truncated one is truncated too, unless its config has another number."""
    folder = cut(whole["cosine"], tmp_path / "cut")
    again = DualEncoder.start(DualEncoderConfig(model=str(folder)))[0]
    assert (again.config.truncate, again.dimensions) == (12, 12)
    shorter = DualEncoder.start(DualEncoderConfig(model=str(folder), truncate=5))[0]
    assert (shorter.config.truncate, shorter.dimensions) == (5, 5)


def test_more_dimensions_than_there_are(whole: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"truncate: got 33, but the vectors of .* have 32 dimensions"):
        DualEncoder.start(toy.retriever_config(whole["dot"], truncate=33, query_tokens=24))


def test_a_config_without_it_is_what_it_was(encoder: Path) -> None:
    assert "truncate" not in toy.retriever_config(encoder).model_dump()
