"""coCondenser: two spans of a document, which find each other among all spans of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparring.components.losses.listwise import cross_entropy
from sparring.components.objectives.cocondenser import span_scores, two_spans
from sparring.components.objectives.parts.config import SpanConfig
from tests.support.pretrainings import VARIANTS, Artifacts
from tests.support.trainings import visits

COCONDENSER = VARIANTS["coCondenser"]


def test_two_spans_are_different_pieces_of_the_text() -> None:
    text, rng = np.arange(23), np.random.default_rng(0)
    pieces = {tuple(range(start, min(start + 5, 23))) for start in range(0, 23, 5)}
    drawn = [two_spans(text, 5, rng) for _ in range(200)]
    assert {tuple(span.tolist()) for pair in drawn for span in pair} == pieces
    assert all(pair[0][0] != pair[1][0] for pair in drawn)


def test_a_short_text_is_cut_in_half() -> None:
    first, second = sorted(two_spans(np.arange(7), 100, np.random.default_rng(0)), key=lambda span: span[0])
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6])
    assert sorted(map(len, two_spans(np.arange(1), 100, np.random.default_rng(0)))) == [0, 1]


def test_a_batch_has_the_spans_of_its_documents(pretraining: Artifacts) -> None:
    """As they stand in the token store, the first ones and then the second ones."""
    objective = pretraining.objective(COCONDENSER, spans=SpanConfig(tokens=3))
    rows = [2, 5, 7]
    batch = objective.collate(visits(rows))
    for position, row in enumerate(rows):
        text = objective.store.documents[row]
        pieces = [text[start : start + 3].tolist() for start in range(0, len(text), 3)]
        spans = [batch.ids[i][batch.text[i]].tolist() for i in (position, position + 3)]
        assert all(span in pieces for span in spans)
        assert len(text) > 6


def test_the_contrast_is_that_of_a_plain_loop() -> None:
    """Gao and Callan (2022): -log of e^s of the sibling over that of all other spans; spans of the same text as the
    row's own are none of them."""
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([7, 8, 7]).tile(2)  # documents 0 and 2 say the same
    result = cross_entropy(span_scores(vectors, keys))
    for row in range(6):
        sibling = (row + 3) % 6
        rest = [j for j in range(6) if keys[j] != keys[row] or j == sibling]
        total = sum(math.exp(float(vectors[row] @ vectors[j])) for j in rest)
        assert float(result[row]) == pytest.approx(math.log(total) - float(vectors[row] @ vectors[sibling]))


def test_copies_count_where_that_is_asked() -> None:
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([7, 8, 7]).tile(2)
    counted = cross_entropy(span_scores(vectors, keys, "count"))
    torch.testing.assert_close(counted, cross_entropy(span_scores(vectors, torch.arange(3).tile(2))))
    assert not torch.allclose(counted, cross_entropy(span_scores(vectors, keys)))


def test_spans_are_no_longer_than_what_is_read(pretraining: Artifacts) -> None:
    """Of halves that are longer than the limit the ends would never be seen."""
    objective = pretraining.objective(COCONDENSER, spans=SpanConfig(tokens=100))
    longest = max(range(objective.rows()), key=lambda row: len(objective.store.documents[row]))
    text = objective.store.documents[longest].tolist()
    seen, limit = set[int](), len(text) // 3 + 2
    for visit in range(60):
        (row,) = visits([longest])
        spans = objective.documents([row._replace(visit=visit)], limit)
        assert int(spans.mask.sum(-1).max()) <= limit
        seen |= set(spans.ids[spans.mask.bool()].tolist())
    assert set(text) <= seen


def test_vectors_are_the_encoders_first_states(pretraining: Artifacts) -> None:
    objective = pretraining.objective(COCONDENSER, max_tokens=60).eval()
    batch = objective.collate(visits(range(6)))
    states = objective.encoder(input_ids=batch.encoder_ids, attention_mask=batch.mask).last_hidden_state
    torch.testing.assert_close(objective.encode(batch).vectors, states[:, 0])
