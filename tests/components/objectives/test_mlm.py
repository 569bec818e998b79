"""Masked language modelling: its loss, and a model that becomes a generator or a retriever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM

from sparring.components.config import UserError
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.masked_language_model import MaskedLanguageModel
from sparring.components.objectives.parts.config import MaskedLanguageModelingConfig
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.support import toy
from tests.support.pretrainings import VARIANTS, Artifacts
from tests.support.trainings import gradients, visits


def test_the_loss_is_hugging_faces(pretraining: Artifacts) -> None:
    """Over all masked tokens of the batch, as it has it."""
    masking = MaskedLanguageModelingConfig(rate=0.4, average="tokens")
    objective = pretraining.objective(VARIANTS["mlm"], max_tokens=60, masking=masking).eval()
    batch = objective.collate(visits(range(12)))
    (term,) = objective.terms(objective.encode(batch), batch).values()
    whole = AutoModelForMaskedLM.from_pretrained(str(pretraining.language_model / "model")).eval()
    labels = batch.wanted.masked_fill(~batch.masked, -100)
    expected = whole(input_ids=batch.ids, attention_mask=batch.mask, labels=labels).loss
    assert term.rows == batch.masked.sum()
    torch.testing.assert_close(term.value / term.rows, expected)


def test_texts_of_which_nothing_is_masked_teach_nothing(pretraining: Artifacts) -> None:
    """As where each is one word that is longer than what may be masked: the mean over no tokens was no number."""
    objective = pretraining.objective(
        VARIANTS["mlm"], masking=MaskedLanguageModelingConfig(average="tokens", rate=1e-9)
    )
    inputs: dict[str, Any] = {"parts": 1, "seed": 1, "update": 0, "device": torch.device("cpu"), "precision": "fp32"}
    losses = gradients(objective, visits(range(4)), **inputs)
    assert set(losses.values()) == {0.0}


def test_what_is_trained_is_a_generator_and_begins_a_retriever(pretraining: Artifacts, tmp_path: Path) -> None:
    """The whole model is saved, with its head."""
    objective = pretraining.objective(VARIANTS["mlm"])
    with torch.no_grad():
        for parameter in objective.model.parameters():
            parameter.add_(0.01)
    objective.save(tmp_path / "trained" / "model")
    saved = MaskedLanguageModel.load(tmp_path / "trained" / "model")
    for name, value in objective.model.state_dict().items():
        assert torch.equal(saved.state_dict()[name], value), name
    assert pretraining.objective(VARIANTS["SimLM"], generator=tmp_path / "trained").generator.config == saved.config
    retriever, _ = DualEncoder.start(toy.retriever_config(tmp_path / "trained" / "model"))
    for name, value in retriever.tower("document").state_dict().items():
        assert torch.equal(saved.encoder.state_dict()[name], value), name


def test_a_model_without_mask_tokens_is_refused(pretraining: Artifacts, tmp_path: Path) -> None:
    tokenizer = toy.bert_tokenizer()
    tokenizer.mask_token = None
    encoder = toy.write_encoder(tmp_path / "encoder", tokenizer=tokenizer)
    started = toy.started(tmp_path / "started", toy.language_model_config(encoder))
    (tmp_path / "tokens").mkdir()
    tokenize(
        tmp_path / "tokens", toy.INLINE, data=pretraining.data, model=started, config=TokenizeConfig(max_tokens=24)
    )
    with pytest.raises(UserError, match="the tokenizer has no mask token"):
        replace(pretraining, tokens=tmp_path / "tokens").objective(VARIANTS["mlm"], start=started)
