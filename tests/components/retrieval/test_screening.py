"""Reasons for removing candidates, by hand and against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.retrieval import screening
from sparring.components.retrieval.screening import REASONS, RankingRows, ScreenConfig

# Query 0 finds documents 5 1 2 7, query 3 finds 1 4; document 7 says what 2 says, document 6 what 5 says.
FOUND = RankingRows(
    np.array([0, 0, 0, 0, 3, 3]), np.array([5, 1, 2, 7, 1, 4]), np.array([9, 8, 6, 2, -1, -2], np.float32)
)
SAME = np.array([0, 1, 2, 3, 4, 5, 5, 2])


def test_judged_documents_are_those_of_the_query_itself() -> None:
    relevant = np.array([[0, 1], [3, 4], [1, 5]])
    assert screening.judged(FOUND, relevant).tolist() == [False, True, False, False, False, True]
    assert not screening.judged(FOUND, np.empty((0, 2), np.int64)).any()


def test_copies_are_of_relevant_documents_found_or_not_and_of_what_stands_before() -> None:
    assert screening.duplicates(FOUND, np.array([[0, 6]]), SAME).tolist() == [True, False, False, True, False, False]
    assert screening.duplicates(FOUND, np.empty((0, 2), np.int64), SAME).tolist() == [False] * 3 + [True] + [False] * 2


def test_the_positive_is_the_best_ranked_relevant_document() -> None:
    scores, places = screening.positive_scores(FOUND, np.array([False, True, True, False, False, False]))
    assert scores[:4].tolist() == [8] * 4
    assert np.isnan(scores[4:]).all()
    assert places.tolist() == [1] * 4 + [-1] * 2
    empty = RankingRows(*(array[:0] for array in FOUND))
    assert [len(part) for part in screening.positive_scores(empty, np.empty(0, bool))] == [0, 0]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, []),
        ({"relative": 1.0}, [0]),  # above the positive's 8
        ({"relative": 0.7}, [0, 1, 2]),  # above 5.6
        ({"absolute": 0.0}, [0]),
        ({"absolute": 2.0}, [0, 1]),  # above 6, and not 6 itself
        ({"absolute": 2.5, "relative": 0.99}, [0, 1, 2]),
    ],
)
def test_margins_to_the_positive(options: dict[str, float], wanted: list[int]) -> None:
    """Query 3's positive was not found: nothing is known of its candidates."""
    positive = np.array([8, 8, 8, 8, np.nan, np.nan], np.float32)
    assert np.flatnonzero(screening.too_near(FOUND, positive, ScreenConfig(**options))).tolist() == wanted


def test_a_share_of_a_score_below_nothing_is_below_it() -> None:
    positive = np.full(6, -1, np.float32)
    near = screening.too_near(FOUND, positive, ScreenConfig(relative=0.5))  # above -1.5
    assert near.tolist() == [True] * 5 + [False]


def test_reciprocal_neighbours_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(3, 7, 4))
    valid = np.ones((3, 7), bool)
    valid[1, 5:] = False
    relevant = valid & (rng.random((3, 7)) < 0.3)
    relevant[:, 1] = True
    for k in (1, 2, 4, 30):
        mask = screening.reciprocal(*map(torch.from_numpy, (vectors, relevant, valid)), k).numpy()
        for b in range(3):
            products = vectors[b] @ vectors[b].T
            present = np.flatnonzero(valid[b])

            def near(i: int, j: int, products: Any = products, present: Any = present, k: int = k) -> bool:
                rivals = [products[i, o] for o in present if o != i]
                return i != j and sum(rival > products[i, j] for rival in rivals) < k

            for c in range(7):
                wanted = valid[b, c] and any(near(r, c) and near(c, r) for r in present if relevant[b, r])
                assert mask[b, c] == wanted


def test_the_first_reason_is_named() -> None:
    flags = {"margin": np.array([True, True, False]), "qrel": np.array([True, False, False])}
    assert [REASONS[i] if i >= 0 else "" for i in screening.first_reason(flags)] == ["qrel", "margin", ""]
