"""Edited copies of texts: what becomes of which token, and what counts as changed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from sparring.components.data.batches import Batch
from sparring.components.objectives.parts.config import AugmentationConfig, DifferenceConfig
from sparring.components.objectives.parts.editing import Edits
from tests.support import toy
from tests.support.pretrainings import DIFFCSE, Artifacts, Variant, edited
from tests.support.trainings import visits

PAD, CLS, SEP, MASK, FIRST = 0, 2, 3, 4, 10  # of the toy vocabulary; FIRST is the first token of a text of `counting`
ALL = range(40)  # the toy documents


def counting(*lengths: int) -> Batch:
    """Texts of so many tokens, each of which is one more than the one before: what is missing shows."""
    width = max(lengths) + 2
    rows = [[CLS, *range(FIRST, FIRST + length), SEP] for length in lengths]
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    return Batch(ids, (ids != PAD).long())


def collated(objective: Any, texts: Batch) -> Edits:
    """Texts with edits that are drawn somehow."""
    rng = np.random.default_rng(5)
    return objective.difference.editing.collate(texts, lambda purpose, width: rng.random((len(texts.ids), width)))


def read(edits: Edits, row: int, ids: Tensor) -> list[int]:
    """The tokens of a copy without its padding."""
    return ids[row][edits.attention[row].bool()].tolist()


def probabilities(pretraining: Artifacts, edits: Edits) -> Tensor:
    """(N, L, V) by Hugging Face's whole model."""
    generator = AutoModelForMaskedLM.from_pretrained(str(pretraining.language_model / "model")).eval()
    with torch.no_grad():
        result: Tensor = generator(input_ids=edits.read, attention_mask=edits.attention).logits.double().softmax(-1)
    return result


# Tokens that are replaced


@pytest.mark.parametrize("options", [{}, {"masked_as": "bert"}, {"unit": "tokens", "generator_dropout": True}], ids=str)
def test_samples_replace_masked_tokens_alone(pretraining: Artifacts, options: dict[str, Any]) -> None:
    """Where the cumulative probability first exceeds the draw. What is drawn as it was before is not changed."""
    edits = edited(pretraining.diffcse(**options), ALL).edits
    cumulative = probabilities(pretraining, edits).cumsum(-1)
    expected = edits.ids.clone()
    for row, place in edits.masked.nonzero().tolist():
        expected[row, place] = int((cumulative[row, place] <= edits.draws[row, place]).sum())
    assert torch.equal(edits.edited, expected)
    assert torch.equal(edits.changed, expected != edits.ids)
    assert edits.changed.any()
    assert (edits.masked & ~edits.changed).any()
    assert torch.equal(edits.read[~edits.masked], edits.ids[~edits.masked])
    became = edits.read[edits.masked] == MASK
    assert bool(became.all()) == (options.get("masked_as") != "bert")
    assert became.double().mean() > 0.7


@pytest.mark.parametrize("masked_as", ["mask", "bert"])
def test_as_released_the_most_probable_token_is_everywhere_but_first(pretraining: Artifacts, masked_as: str) -> None:
    """Masked or not, [SEP] included; padding stays."""
    edits = edited(pretraining.diffcse(replaced_by="argmax", masked_as=masked_as), ALL).edits
    best, expected = probabilities(pretraining, edits).argmax(-1), edits.ids.clone()
    for row, place in edits.attention.nonzero().tolist():
        if place > 0:
            expected[row, place] = best[row, place]
    assert torch.equal(edits.edited, expected)
    assert torch.equal(edits.changed, expected != edits.ids)
    for where in (edits.ids == SEP, edits.text & ~edits.masked, edits.masked):
        assert edits.changed[where].any()


@pytest.mark.parametrize(("subject", "special"), [("text", 0), ("all", 2)])
def test_the_rate_is_a_share_of_the_texts_tokens(pretraining: Artifacts, subject: str, special: int) -> None:
    """Or of these and the special ones, which are never masked."""
    lengths = [1, 2, 5, 13, 20, 22]
    edits = collated(pretraining.diffcse(unit="tokens", rate=0.3, rate_of=subject), counting(*lengths))
    assert edits.masked.sum(-1).tolist() == [round(0.3 * (length + special)) for length in lengths]
    assert not (edits.masked & ~edits.text).any()
    assert edits.text.sum(-1).tolist() == lengths


def test_either_view_has_masks_of_its_own(pretraining: Artifacts) -> None:
    """Drawn from (seed, row, visit), whatever stands beside."""
    objective = pretraining.diffcse()
    edits = objective.collate(visits(ALL)).edits
    for item in (edits.masked, edits.draws):
        first, second = item.chunk(2)
        assert (first != second).any(-1).double().mean() > 0.7
    pair = objective.collate(visits([9, 4])).edits
    width = min(pair.ids.shape[1], edits.ids.shape[1])
    for of_batch, of_pair in ((edits.masked, pair.masked), (edits.read, pair.read), (edits.draws, pair.draws)):
        assert torch.equal(of_batch[[9, 4, 49, 44], :width], of_pair[:, :width])
    later = objective.collate([visits([4])[0]._replace(visit=visit) for visit in range(6)]).edits.masked
    assert len(later.unique(dim=0)) > 3


def test_the_generators_dropout_is_an_option(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """The released code leaves it on in training. The generator is not trained, and in no checkpoint."""
    shaky = toy.started(tmp_path / "shaky", toy.language_model_config(encoder, dropout=0.5))
    for released in (False, True):
        objective = pretraining.objective(
            DIFFCSE["DiffCSE"], generator=shaky, difference=DifferenceConfig(generator_dropout=released)
        )
        assert not any("generator" in name for name in objective.state_dict())
        assert not any(parameter.requires_grad for parameter in objective.frozen("generator").parameters())
        for training in (True, False):
            edits = objective.train(training).collate(visits(ALL)).edits
            twice = [objective.difference.editing.edit(objective, edits).edited for _ in range(2)]
            assert torch.equal(*twice) == (not (released and training))


# Tokens that are taken out, and put in


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.99])
def test_a_token_is_marked_where_one_before_it_was_taken_out(pretraining: Artifacts, rate: float) -> None:
    """A text keeps a token at least; what was at its end marks [SEP]. There is nothing to ask a generator."""
    lengths = [1, 2, 9, 16, *[22] * 30]
    edits = collated(pretraining.diffcse(edits=["delete"], deletion_rate=rate), counting(*lengths))
    assert edits.edited is not None
    assert torch.equal(edits.edited, edits.ids)
    for row, length in enumerate(lengths):
        copy = read(edits, row, edits.ids)
        assert length - (len(copy) - 2) == min(round(rate * length), length - 1)
        whole = [FIRST - 1, *copy[1:-1], FIRST + length]  # what stands before and after the text, counted on
        expected = [False, *(item > before + 1 for before, item in pairwise(whole))]
        assert read(edits, row, edits.marked) == expected
        assert read(edits, row, edits.changed) == expected
        assert (copy[0], copy[-1]) == (CLS, SEP)
    assert not edits.changed[edits.attention == 0].any()


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_inserted_tokens_stand_among_the_others_in_their_order(pretraining: Artifacts, rate: float) -> None:
    """At places of the text. What gets longer than the model reads loses tokens at its end."""
    lengths = [1, 2, 9, 16, 22, 22]
    objective = pretraining.diffcse(edits=["insert"], insertion_rate=rate).eval()
    edits = collated(objective, counting(*lengths))
    for row, length in enumerate(lengths):
        inserted, copy = read(edits, row, edits.marked), read(edits, row, edits.ids)
        count = round(rate * length)
        assert sum(inserted) == count
        assert len(copy) == min(length + count + 2, 24)
        rest = [token for token, new in zip(copy, inserted, strict=True) if not new]
        assert rest == [CLS, *range(FIRST, FIRST + len(copy) - 2 - count), SEP]
        assert (copy[0], copy[-1]) == (CLS, SEP)
    assert not (edits.marked & ~edits.text).any()
    assert (edits.ids[edits.marked] == MASK).all()
    assert torch.equal(edits.read, edits.ids)
    assert len({tuple(read(edits, row, edits.marked)) for row in (4, 5)}) == 2


@pytest.mark.parametrize("replaced_by", ["samples", "argmax"])
def test_the_generator_makes_tokens_of_what_is_inserted(pretraining: Artifacts, replaced_by: str) -> None:
    """And of nothing else; they count as changed whatever they are."""
    edits = edited(pretraining.diffcse(edits=["insert"], replaced_by=replaced_by), ALL).edits
    result, expected = probabilities(pretraining, edits), edits.ids.clone()
    for row, place in edits.marked.nonzero().tolist():
        below = result[row, place].cumsum(-1) <= edits.draws[row, place]
        expected[row, place] = below.sum() if replaced_by == "samples" else result[row, place].argmax()
    assert torch.equal(edits.edited, expected)
    assert torch.equal(edits.changed, edits.marked)
    assert edits.marked.any()


# Several kinds


def test_of_three_kinds_each_copy_has_one(pretraining: Artifacts) -> None:
    """Each as often as the others, among the texts of a batch."""
    kinds = ["replace", "insert", "delete"]
    edits = collated(pretraining.diffcse(edits=kinds, unit="tokens"), counting(*[16] * 300))
    length = edits.text.sum(-1)
    for row in range(300):
        replaced, marked = int(edits.masked[row].sum()), int(edits.marked[row].sum())
        assert (int(length[row]), replaced) in {(16, 5), (18, 0), (14, 0)}
        assert bool(marked) == (replaced == 0)
    shares = [float((length == count).double().mean()) for count in (16, 18, 14)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.08)


def test_kinds_are_drawn_for_each_view_and_visit(pretraining: Artifacts) -> None:
    objective = pretraining.diffcse(edits=["insert", "delete"])
    edits = objective.collate([visits([4])[0]._replace(visit=visit) for visit in range(30)]).edits
    kinds = (edits.ids == MASK).any(-1)
    first, second = kinds.chunk(2)
    assert 5 < int((first != second).sum()) < 25
    assert 5 < int(first.sum()) < 25


# Copies that are examples of SimCSE


@pytest.mark.parametrize("kind", ["replace", "insert", "delete"])
def test_copies_of_simcse_are_edited_so_too(pretraining: Artifacts, kind: Any) -> None:
    """One a text, and another at each visit."""
    config = AugmentationConfig(role="negative", edits=[kind], unit="tokens")
    variant = Variant("simcse", ("batch",), generator=config.generates)
    objective = pretraining.objective(variant, augmentation=config).eval()
    edits = objective._editing.edit(objective, objective.collate(visits(ALL)).edits)
    for row, document in enumerate(objective.store.documents[text][:22] for text in ALL):
        count = round(0.15 * len(document))
        masked, marked = int(edits.masked[row].sum()), int(edits.marked[row].sum())
        grown = int(edits.text[row].sum()) - len(document)
        if kind == "replace":
            assert (masked, marked, grown) == (count, 0, 0)
        elif kind == "insert":
            assert (masked, marked, grown) == (0, count, min(count, 22 - len(document)))
        else:
            assert (masked, grown) == (0, -count)
            assert bool(marked) == bool(count)
    if kind == "delete":
        assert torch.equal(edits.edited, edits.ids)
    else:
        cumulative = probabilities(pretraining, edits).cumsum(-1)
        where = edits.masked | edits.marked
        samples = (cumulative <= edits.draws.unsqueeze(-1)).sum(-1)
        assert torch.equal(edits.edited, samples.where(where, edits.ids))
    visited = objective.collate([visits([4])[0]._replace(visit=visit) for visit in range(6)]).edits.read
    assert len(visited.unique(dim=0)) > 3
