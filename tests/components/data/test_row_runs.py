"""Runs of a column against a loop."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from sparring.components.data import row_runs


@pytest.mark.parametrize("labels", [[], [3], [3, 3, 3], [1, 1, 2, 1, 1, 1, 5], list(range(7))])
def test_runs_are_those_of_a_loop(labels: list[int]) -> None:
    lengths = [len(list(run)) for _, run in groupby(labels)]
    array = np.array(labels, np.int64)
    assert row_runs.starts(array).tolist() == [sum(lengths[:number]) for number in range(len(lengths))]
    assert row_runs.ranks(array).tolist() == [place for length in lengths for place in range(length)]
