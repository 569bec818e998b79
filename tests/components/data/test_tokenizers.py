"""A tokenizer's digest tells which models can read the same tokens."""

from __future__ import annotations

from pathlib import Path

from components.data.tokenizers import tokenizer_digest
from tests.support import toy


def test_a_tokenizers_digest_moves_with_its_rules_alone(tmp_path: Path) -> None:
    tokenizer = toy.bert_tokenizer()
    tokenizer.save_pretrained(str(tmp_path / "a"))
    tokenizer("bara", truncation=True, max_length=5, padding="max_length")  # leaves its mark on the tokenizer
    tokenizer.save_pretrained(str(tmp_path / "b"))
    toy.roberta_tokenizer().save_pretrained(str(tmp_path / "c"))
    a, b, c = (tokenizer_digest(tmp_path / name) for name in "abc")
    assert a == b != c
