"""Numbers of the pictures, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.components.charts.label_curves import by_rank, normalised, softmax

VALUES = np.array([[1.0, 4.0, 2.0], [6.0, 8.0, 99.0]])
THERE = np.array([[True, True, True], [True, True, False]])


def test_by_rank_each_querys_best_are_together_and_what_is_not_there_counts_nowhere() -> None:
    assert by_rank(VALUES, THERE) == [(1, 6.0, 2.0), (2, 4.0, 2.0), (3, 1.0, 0.0)]


def test_divided_by_the_largest_the_least_is_not_nothing() -> None:
    assert normalised(VALUES, THERE, "max").tolist() == [[0.25, 1.0, 0.5], [0.75, 1.0, 0.0]]
    assert normalised(VALUES, THERE, "max-min").tolist() == [[0.0, 1.0, pytest.approx(1 / 3)], [0.0, 1.0, 0.0]]
    assert normalised(np.ones((1, 2)), np.ones((1, 2), bool), "max-min").tolist() == [[0.0, 0.0]]


def test_shares_of_what_is_there() -> None:
    """Odds 1 : 2 at temperature 1, 1 : 4 at a half."""
    scores = np.log([[1.0, 2.0, 5.0]])
    forward = np.array([[True, True, False]])
    assert softmax(scores, forward, 1.0)[0] == pytest.approx([1 / 3, 2 / 3, 0])
    assert softmax(scores, forward, 0.5)[0] == pytest.approx([1 / 5, 4 / 5, 0])
