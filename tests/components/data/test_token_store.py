"""A token store is read by models with its tokenizer, and by no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokens import Tokens
from tests.support import toy


def test_tokens_are_not_read_with_another_models_tokenizer(toys: Path, tokens: Path, retriever: Path) -> None:
    assert TokenStore(tokens, retriever / "model").documents[0].tolist() == Tokens.open(tokens, "documents")[0].tolist()
    other = toy.write_encoder(toys / "other words", "roberta")
    with pytest.raises(UserError, match=r"made with another tokenizer \([0-9a-f]{16}\) than that of .*other words"):
        TokenStore(tokens, other)
