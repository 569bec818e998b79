"""SimCSE: its loss against plain loops, its projectors, and edited copies as further examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.losses.listwise import cross_entropy
from sparring.components.models.bottleneck import Projector
from sparring.components.models.masked_language_model import MaskedLanguageModel
from sparring.components.objectives.parts.config import (
    AugmentationConfig,
    MaskedLanguageModelingConfig,
    ProjectorConfig,
)
from sparring.components.objectives.simcse import view_scores
from tests.support import toy
from tests.support.errors import refused
from tests.support.pretrainings import DIFFCSE, Artifacts, Variant
from tests.support.trainings import checked, visits

SIMCSE, EDITING = DIFFCSE["SimCSE"], DIFFCSE["DiffCSE"]
ROWS = [0, 3, 5, 8]


@pytest.mark.parametrize("duplicates", ["mask", "count"])
def test_the_contrast_is_that_of_a_plain_loop(duplicates: Any) -> None:
    """-log of e^(cos / t) of the sibling over that of all second views, t = .05. Texts that say the same count once,
    and never beside the row's own, but where duplicates count."""
    vectors = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([7, 8, 7, 9])
    result = cross_entropy(view_scores(vectors, keys, duplicates), temperature=0.05)
    counted = {"count": [[0, 1, 2, 3]] * 4, "mask": [[0, 1, 3], [0, 1, 3], [1, 2, 3], [0, 1, 3]]}[duplicates]
    for row in range(4):
        cosines = {
            j: float(vectors[row] @ vectors[4 + j] / (vectors[row].norm() * vectors[4 + j].norm())) for j in range(4)
        }
        total = sum(math.exp(cosines[j] / 0.05) for j in counted[row])
        assert float(result[row]) == pytest.approx(math.log(total) - cosines[row] / 0.05)


def test_views_differ_by_dropout_alone(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    start = toy.started(tmp_path / "shaky", toy.retriever_config(encoder, dropout=0.1))
    objective = pretraining.objective(SIMCSE, start=start, projector=ProjectorConfig(kind="none"))
    batch = objective.collate(visits(ROWS))
    assert torch.equal(*batch.texts.ids.chunk(2))
    first, second = objective.eval().encode(batch).vectors.chunk(2)
    torch.testing.assert_close(first, second)
    assert torch.equal(first, objective.model.pooled(batch.texts, "document").chunk(2)[0])
    first, second = objective.train().encode(batch).vectors.chunk(2)
    assert ((first - second).abs().max(1).values > 1e-3).all()


def test_the_projector_with_batchnorm_is_the_papers() -> None:
    """Appendix A.1, in a loop over its two layers; in evaluation the running means."""
    torch.manual_seed(0)
    projector = Projector(6, "batchnorm")
    vectors = torch.randn(16, 6)

    def normal(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (values - mean) / (variance + 1e-5).sqrt()

    first, second = (layer.weight for layer in projector.layers if isinstance(layer, nn.Linear))
    hidden = vectors @ first.T
    inner = normal(hidden, hidden.mean(0), hidden.var(0, unbiased=False)).relu() @ second.T
    expected = normal(inner, inner.mean(0), inner.var(0, unbiased=False))
    torch.testing.assert_close(projector.train()(vectors), expected)
    assert [tuple(layer.shape) for layer in (first, second)] == [(12, 6), (6, 12)]
    before = projector.layers[1].running_mean.clone()
    projector.eval()(vectors)
    assert torch.equal(projector.layers[1].running_mean, before)
    torch.testing.assert_close(before, 0.1 * hidden.mean(0))
    alone, together = projector(vectors[:3]), projector(vectors)[:3]
    torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("kind", ["batchnorm", "tanh", "none"])
def test_poolers_are_a_choice(pretraining: Artifacts, kind: Any) -> None:
    """Tables 2.5: by default tanh in SimCSE, BatchNorm in DiffCSE."""
    objective = pretraining.objective(SIMCSE, projector=ProjectorConfig(kind=kind)).train()
    assert objective.encode(objective.collate(visits(ROWS))).vectors.shape == (8, 32)
    assert pretraining.objective(SIMCSE).projector.kind == "tanh"
    assert pretraining.objective(EDITING).projector.kind == "batchnorm"


# Masked language modelling beside it

MASKING = MaskedLanguageModelingConfig(rate=0.4, unit="tokens", masked_as="bert", average="tokens")


def predicting(pretraining: Artifacts, **options: Any) -> Any:
    """SimCSE with masked language modelling, and the head of a masked language model."""
    variant = Variant("simcse", ("batch", "masked"))
    actual = {"masking": MASKING, "language_model": pretraining.language_model}
    return pretraining.objective(variant, **{**actual, **options})


def test_masked_tokens_of_either_view_are_predicted(pretraining: Artifacts) -> None:
    """By the encoder and the head alone: the log-probabilities of the tokens before, by hand, and their mean over all
    masked tokens of both views. What the views find of each other is that of SimCSE."""
    objective = predicting(pretraining).eval()
    batch = objective.collate(visits(ROWS))
    masked = batch.masked
    first, second = masked.masked.chunk(2)
    assert not torch.equal(first, second)
    assert torch.equal(masked.wanted, batch.texts.ids)
    assert torch.equal(masked.ids.where(~masked.masked, 0), batch.texts.ids.where(~masked.masked, 0))
    text = objective.store.template.text_positions(batch.texts)
    assert not (masked.masked & ~text).any()
    counts, lengths = masked.masked.sum(-1), text.sum(-1)
    assert torch.equal(counts, (0.4 * lengths).round().long().clamp_min(1))
    result = objective.encode(batch)
    encoder = objective.model.tower("document")
    states = encoder(input_ids=masked.ids, attention_mask=masked.mask).last_hidden_state
    wanted = objective.head(states.flatten(0, 1)).log_softmax(-1).view(*states.shape[:2], -1)
    wanted = wanted.gather(-1, masked.wanted.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(result.likelihoods, wanted.where(masked.masked, 0.0), rtol=1e-4, atol=1e-5)
    terms = objective.terms(result, batch)
    loss = terms["negative_log_likelihood (masked)"]
    torch.testing.assert_close(loss.value / loss.rows, -wanted[masked.masked].mean(), rtol=1e-4, atol=1e-5)
    alone = pretraining.objective(SIMCSE).eval()
    alone.projector.load_state_dict(objective.projector.state_dict())
    torch.testing.assert_close(result.vectors, alone.encode(alone.collate(visits(ROWS))).vectors)


def test_the_encoder_learns_from_masked_tokens(pretraining: Artifacts) -> None:
    """The head begins as the language model's, or anew; both learn, and so does the encoder below."""
    head = MaskedLanguageModel.load(pretraining.language_model / "model").head.model
    for options in ({}, {"language_model": None}):
        objective = predicting(pretraining, **options)
        same = torch.equal(
            objective.head.model.cls.predictions.transform.dense.weight, head.cls.predictions.transform.dense.weight
        )
        assert same is (not options)
        batch = objective.collate(visits(ROWS))
        term = objective.terms(objective.encode(batch), batch)["negative_log_likelihood (masked)"]
        term.value.backward()
        for part in (objective.head, objective.model.tower("document").encoder):
            assert any(value.grad is not None and value.grad.abs().max() > 0 for value in part.parameters())


def test_masks_do_not_depend_on_the_batch(pretraining: Artifacts) -> None:
    objective = predicting(pretraining)
    checked(objective)
    wide, alone = objective.collate(visits(ROWS)).masked, objective.collate(visits(ROWS[:1])).masked
    width = alone.ids.shape[1]
    for view in (0, 1):
        assert torch.equal(wide.ids[view * len(ROWS), :width], alone.ids[view])


def test_the_first_tokens_of_a_text_are_learnt_from(pretraining: Artifacts) -> None:
    """And rated pairs are read whole."""
    for variant in (SIMCSE, EDITING):
        objective = pretraining.objective(variant, text_tokens=6)
        batch = objective.collate(visits(ROWS))
        assert batch.texts.mask.sum(-1).max() == 6
        assert objective.model.max_tokens("document") == 24
        if batch.edits is not None:
            assert batch.edits.attention.sum(-1).max() == 6


# Edited copies as examples


def augmented(pretraining: Artifacts, *, max_tokens: int = 200, recompute: bool = False, **options: Any) -> Any:
    """SimCSE with edited copies."""
    config = AugmentationConfig(**options)
    return pretraining.objective(
        Variant("simcse", ("batch",), generator=config.generates),
        max_tokens=max_tokens,
        recompute=recompute,
        augmentation=config,
    )


@pytest.mark.parametrize("duplicates", ["mask", "count"])
@pytest.mark.parametrize("role", ["positive", "negative"])
def test_copies_are_further_positives_or_negatives(role: Any, duplicates: Any) -> None:
    """-log of e^(cos / t) over the sum of second views and copies, of the sibling, or the mean of that over the sibling
    and the copy. What does not count as a second view counts as little as a copy."""
    vectors = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([7, 8, 7, 9])
    result = cross_entropy(view_scores(vectors, keys, duplicates, copies=role), temperature=0.05)
    counted = {"count": [[0, 1, 2, 3]] * 4, "mask": [[0, 1, 3], [0, 1, 3], [1, 2, 3], [0, 1, 3]]}[duplicates]
    for row in range(4):
        first = vectors[row]
        second, copies = (
            [float(first @ vectors[start + j] / (first.norm() * vectors[start + j].norm())) for j in range(4)]
            for start in (4, 8)
        )
        total = math.log(sum(math.exp(subject[j] / 0.05) for subject in (second, copies) for j in counted[row]))
        positives = [second[row]] if role == "negative" else [second[row], copies[row]]
        assert float(result[row]) == pytest.approx(total - sum(positives) / len(positives) / 0.05)


@pytest.mark.parametrize("kind", ["replace", "insert", "delete"])
def test_copies_are_encoded_as_texts_are(pretraining: Artifacts, kind: Any) -> None:
    """One of each text, behind the same projector; its edits are those of the visit."""
    objective = augmented(pretraining, role="negative", edits=[kind]).eval()
    batch = objective.collate(visits(ROWS))
    plain = pretraining.objective(SIMCSE).eval()
    with torch.no_grad():
        vectors = objective.encode(batch).vectors
        torch.testing.assert_close(vectors[:8], plain.encode(plain.collate(visits(ROWS))).vectors)
        edits = objective._editing.edit(objective, batch.edits)
        for row in range(4):
            ids = edits.edited[row : row + 1][:, edits.attention[row].bool()]
            state = objective.model.tower("document")(input_ids=ids).last_hidden_state[:, 0]
            torch.testing.assert_close(vectors[8 + row], objective.projector(state)[0], rtol=1e-4, atol=1e-5)
    assert len(edits.edited) == 4
    assert objective.operations(batch) > plain.operations(plain.collate(visits(ROWS)))
    alone = objective.collate(visits(ROWS[2:3])).edits
    width = min(alone.ids.shape[1], edits.ids.shape[1])
    assert torch.equal(alone.read[0, :width], edits.read[2, :width])


def test_the_gradient_with_copies_in_pieces_is_that_of_one_pass(pretraining: Artifacts) -> None:
    assert checked(augmented(pretraining, role="positive", edits=["delete"], max_tokens=60, recompute=True)) < 1e-4


def test_the_paper_edits_15_percent(pretraining: Artifacts) -> None:
    """Table 2.13."""
    config = AugmentationConfig(role="positive")
    assert config.rate == config.insertion_rate == config.deletion_rate == 0.15


# Refused


def test_what_simcse_does_not_train_is_refused(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    for name, options in {"towers": {"towers": "separate"}, "projection": {"projection": 8}}.items():
        start = toy.started(tmp_path / name, toy.retriever_config(encoder, **options))
        with pytest.raises(UserError, match=f"{name}: .* a sentence encoder is one tower"):
            pretraining.objective(SIMCSE, start=start)
    with refused("losses", "unknown-view"):
        pretraining.objective(Variant("simcse", ("discriminator",)))
    with pytest.raises(UserError, match="generator: simcse edits texts only with"):
        pretraining.objective(Variant("simcse", ("batch",), generator=True))
    with refused("generator", "missing-model"):
        pretraining.objective(SIMCSE, augmentation=AugmentationConfig(role="negative"))
