"""Causal language models in training: gradient caching, the check before the first update, going on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.components.training import self_check
from tests.support import toy
from tests.support.trainings import Interrupted, assert_close, assert_same

BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}


@pytest.fixture
def begins(tmp_path: Path) -> dict[str, Path]:
    """A retriever and a ranker on Qwen3's layers; with BERT's tokenizer, whose token store all tests share."""
    folder = toy.write_encoder(tmp_path / "qwen3", "qwen3", tokenizer=toy.bert_tokenizer(), head=True)
    return {
        "retriever": toy.started(tmp_path / "retriever", toy.retriever_config(folder, dropout=0.2)),
        "ranker": toy.started(tmp_path / "ranker", toy.ranker_config(folder, true_token="bara", false_token="comi")),
    }


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_interrupted_it_ends_as_if_never_interrupted(
    run: Any, tmp_path: Path, begins: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bitwise; and the check of gradients finds what it should."""
    compared = []
    real = self_check.compare
    monkeypatch.setattr(self_check, "compare", lambda *a, **named: compared.append(real(*a, **named)))
    losses = [BATCH] if kind == "retriever" else [{"function": toy.CROSS_ENTROPY}]
    options = {"kind": kind, "start": begins[kind], "losses": losses, "updates": 4}
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=2, **options)
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")
    assert compared
    assert max(compared) < 1e-4


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_pieces_and_gradient_caching_change_nothing(
    run: Any, tmp_path: Path, begins: dict[str, Path], kind: str
) -> None:
    """One pass over the batch, or pieces of few tokens that are encoded again for their gradients."""
    start = {"retriever": tmp_path / "still", "ranker": begins["ranker"]}[kind]
    if kind == "retriever":
        toy.started(start, toy.retriever_config(tmp_path / "qwen3", similarity="cosine"))
    run("a", kind=kind, start=start, piece=10**6)
    run("b", kind=kind, start=start, piece=60, recompute=True)
    assert_close(tmp_path / "a", tmp_path / "b")
