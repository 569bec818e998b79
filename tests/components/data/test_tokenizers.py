"""What a tokenizer's file tells: which models can read the same tokens, and where words begin."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sparring.components.config import UserError
from sparring.components.data.tokenizers import save_tokenizer, tokenizer_digest, word_starts
from tests.support import toy


def test_a_tokenizers_digest_moves_with_its_rules_alone(tmp_path: Path) -> None:
    tokenizer = toy.bert_tokenizer()
    tokenizer.save_pretrained(str(tmp_path / "a"))
    tokenizer("bara", truncation=True, max_length=5, padding="max_length")  # leaves its mark on the tokenizer
    tokenizer.save_pretrained(str(tmp_path / "b"))
    toy.roberta_tokenizer().save_pretrained(str(tmp_path / "c"))
    a, b, c = (tokenizer_digest(tmp_path / name) for name in "abc")
    assert a == b != c


def test_a_tokenizer_is_written_alike_offline_and_online(tmp_path: Path, encoder: Path) -> None:
    """Else the same step writes another file once the hub has not answered."""
    for offline in (False, True):
        tokenizer = AutoTokenizer.from_pretrained(str(encoder), local_files_only=offline)
        save_tokenizer(tokenizer, tmp_path / str(offline))
    files = sorted(path.name for path in (tmp_path / "True").iterdir())
    assert "tokenizer_config.json" in files
    for name in files:
        assert (tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes(), name


def test_where_words_begin(tmp_path: Path) -> None:
    """At every token that the tokenizer's own words begin with, and at no other."""
    tokenizer = toy.bert_tokenizer()
    tokenizer.save_pretrained(str(tmp_path))
    starts = word_starts(tmp_path)
    assert len(starts) == len(tokenizer)
    read = tokenizer("bara xq7, comi-dutol.", add_special_tokens=False)
    words = read.word_ids()
    assert starts[read["input_ids"]].tolist() == [i == 0 or word != words[i - 1] for i, word in enumerate(words)]
    assert starts[tokenizer.all_special_ids].all()


def test_other_tokenizers_do_not_say_where_words_begin(tmp_path: Path) -> None:
    toy.roberta_tokenizer().save_pretrained(str(tmp_path))
    with pytest.raises(UserError, match=r"but this one is BPE. Use `unit: tokens`"):
        word_starts(tmp_path)
