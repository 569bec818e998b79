"""Masked language models: Hugging Face's scores at the places asked for, sampling, and what is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from sparring.components.config import UserError
from sparring.components.models.masked_language_model import LanguageModelHead, MaskedLanguageModel
from sparring.components.models.saved import load_encoder
from tests.support import toy
from tests.support.errors import refused

ARCHITECTURES = pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])


def some_batch(vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two texts, one of them padded, and places in both."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocabulary, (2, 8), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids, mask, (torch.rand(2, 8, generator=rng) < 0.6) & mask.bool()


@ARCHITECTURES
def test_scores_at_some_places_are_those_of_the_whole_model(tmp_path: Path, kind: str) -> None:
    """Before and after saving, whose files transformers reads."""
    toy.write_encoder(tmp_path / "encoder", kind)
    output, tokenizer = MaskedLanguageModel.start(toy.language_model_config(tmp_path / "encoder", dropout=None))
    tokenizer.save_pretrained(str(tmp_path / "tokenizer"))
    output.save(tmp_path / "saved", tmp_path / "tokenizer")
    ids, mask, where = some_batch(output.vocabulary)
    whole = AutoModelForMaskedLM.from_pretrained(str(tmp_path / "saved")).eval()
    with torch.no_grad():
        expected = whole(input_ids=ids, attention_mask=mask).logits[where]
        for model in (output.eval(), MaskedLanguageModel.load(tmp_path / "saved").eval()):
            states = model.states(ids, mask, where)
            torch.testing.assert_close(model.head(states), expected)
            wanted = expected.log_softmax(-1).gather(1, ids[where].unsqueeze(1)).squeeze(1)
            torch.testing.assert_close(model.head.log_likelihoods(states, ids[where]), wanted)


def test_a_new_head_is_a_matter_of_the_seed(encoder: Path) -> None:
    single, same, second = (
        MaskedLanguageModel.start(toy.language_model_config(encoder, seed=seed))[0].head.model.cls.predictions
        for seed in (1, 1, 2)
    )
    assert torch.equal(single.transform.dense.weight, same.transform.dense.weight)
    assert not torch.equal(single.transform.dense.weight, second.transform.dense.weight)


def test_random_weights_have_the_shape_alone(encoder: Path) -> None:
    """Table 12 of Wang et al. (2023), "joint train w/ random init"."""
    existing = load_encoder(encoder).state_dict()
    output = MaskedLanguageModel.start(toy.language_model_config(encoder, weights="random"))[0].encoder.state_dict()
    assert {name: value.shape for name, value in output.items()} == {
        name: value.shape for name, value in existing.items()
    }
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.allclose(output[name], existing[name])


def test_the_last_matrix_is_that_of_the_token_embeddings(encoder: Path) -> None:
    model = MaskedLanguageModel.start(toy.language_model_config(encoder))[0]
    assert model.head.model.get_output_embeddings().weight is model.encoder.get_input_embeddings().weight
    second = load_encoder(encoder)
    head = model.head.on(second)
    assert head.model.get_output_embeddings().weight is second.get_input_embeddings().weight


def test_a_head_of_another_width_is_refused(encoder: Path, tmp_path: Path) -> None:
    model = MaskedLanguageModel.start(toy.language_model_config(encoder))[0]
    second = load_encoder(toy.write_encoder(tmp_path, hidden_size=16))
    with pytest.raises(UserError, match=r"language_model: its head has the width and vocabulary \(32, "):
        model.head.on(second)


def test_longer_texts_than_it_reads_are_refused(encoder: Path) -> None:
    with refused("document_tokens", "too-many-tokens"):
        MaskedLanguageModel.start(toy.language_model_config(encoder, document_tokens=200))


def test_scores_in_slices_are_those_at_once(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their gradient, which is computed anew."""
    from sparring.components.models import masked_language_model

    head = LanguageModelHead.new(load_encoder(encoder)).eval()
    states = torch.randn(7, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ids = torch.arange(7) + 5
    result = []
    for at_once in (100, 3):
        monkeypatch.setattr(masked_language_model, "predicted_at_once", lambda *, cuda, count=at_once: count)
        likelihoods = head.log_likelihoods(states, ids)
        (gradient,) = torch.autograd.grad(likelihoods.sum(), states)
        result.append((likelihoods, gradient, head.sample(states, torch.linspace(0, 1, 7))))
    for first, second in zip(*result, strict=True):
        torch.testing.assert_close(first, second)
