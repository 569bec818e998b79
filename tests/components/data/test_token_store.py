"""A token store is read by models with its tokenizer, and by no others."""

from __future__ import annotations

from pathlib import Path

from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokens import Tokens
from tests.support import toy
from tests.support.errors import refused


def test_tokens_are_not_read_with_another_models_tokenizer(toys: Path, tokens: Path, retriever: Path) -> None:
    assert TokenStore(tokens, retriever / "model").documents[0].tolist() == Tokens.open(tokens, "documents")[0].tolist()
    encoder = toy.write_encoder(toys / "other words", "roberta")
    with refused("tokens", "other-tokenizer"):
        TokenStore(tokens, encoder)
