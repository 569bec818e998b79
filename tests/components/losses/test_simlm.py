"""SimLM's contrastive loss by hand and by loops: the paper's Eq. 3 and the four blocks of its public code."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparring.components.losses.listwise import cross_entropy
from sparring.components.losses.same_tower import samtone
from sparring.components.losses.simlm import contrastive, released
from tests.support.vectors import batch, one_row, unit

NAMES = ("document_query", "query_query", "document_document")


@pytest.mark.parametrize("on", list(itertools.product((True, False), repeat=3)), ids=str)
def test_the_blocks_by_hand(on: tuple[bool, bool, bool]) -> None:
    """Odds 1 : 2 of the documents, and 3, 5 and 7 of the blocks."""
    scores = one_row(
        0,
        [math.log(2)],
        document_query=[math.log(3)],
        query_query=[math.log(5)],
        document_document=[math.log(7)],
    )
    value = released(scores, temperature=1.0, **dict(zip(NAMES, on, strict=True)))
    wanted = 3 + sum(odds for odds, forward in zip((3, 5, 7), on, strict=True) if forward)
    assert value.item() == pytest.approx(math.log(wanted))


def test_as_released_it_is_one_softmax_over_four_blocks() -> None:
    """Documents of all rows with their mined negatives, and three blocks that leave the row itself out."""
    t, (q, d) = 0.4, (unit(4, seed=1), unit(6, seed=2))
    values = released(batch(q, d), temperature=t)
    for i in range(4):
        row = [q[i] @ d[j] for j in range(6)]
        for j in range(4):
            if j != i:
                row += [d[i] @ q[j], q[i] @ q[j], d[i] @ d[j]]
        assert len(row) == 6 + 3 * 3
        wanted = -torch.log_softmax(torch.stack(row) / t, 0)[i]
        torch.testing.assert_close(values[i], wanted)


def test_the_papers_equation_3() -> None:
    """Each negative, in-batch or mined, against the query and against its document."""
    t, (q, d) = 0.4, (unit(4, seed=1), unit(6, seed=2))
    values = contrastive(batch(q, d), temperature=t)
    for i in range(4):
        positive = math.exp(q[i] @ d[i] / t)
        negatives = sum(math.exp(q[i] @ d[j] / t) + math.exp(d[i] @ d[j] / t) for j in range(6) if j != i)
        assert values[i].item() == pytest.approx(-math.log(positive / (positive + negatives)))


def test_what_it_has_in_common_with_others() -> None:
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    off = dict.fromkeys(NAMES, False)
    torch.testing.assert_close(released(scores, **off), cross_entropy(scores, temperature=0.02))
    torch.testing.assert_close(
        released(scores, **{**off, "query_query": True}), samtone(scores, temperature=0.02, both_directions=False)
    )
    same = batch(unit(4, seed=1), unit(4, seed=2))  # without mined negatives
    torch.testing.assert_close(released(same, **{**off, "document_document": True}), contrastive(same))


@pytest.mark.parametrize("loss", [contrastive, released])
def test_the_temperature_warms_up(loss: Any) -> None:
    """The factor of the scores grows from 1 to 1 / temperature, in a straight line; without warm-up it is constant."""
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    for update, factor in ((0, 1), (4, 1), (5, 1.25), (10, 2.5), (20, 5), (50, 5)):
        warmed = loss(replace(scores, update=update), temperature=0.2, warmup=20)
        torch.testing.assert_close(warmed, loss(scores, temperature=1 / factor))
        torch.testing.assert_close(loss(replace(scores, update=update), temperature=0.2), loss(scores, temperature=0.2))
