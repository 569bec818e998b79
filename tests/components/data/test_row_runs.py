"""Runs of a column against a loop."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from sparring.components.data import row_runs


@pytest.mark.parametrize("of", [[], [3], [3, 3, 3], [1, 1, 2, 1, 1, 1, 5], list(range(7))])
def test_runs_are_those_of_a_loop(of: list[int]) -> None:
    lengths = [len(list(run)) for _, run in groupby(of)]
    found = np.array(of, np.int64)
    assert row_runs.starts(found).tolist() == [sum(lengths[:number]) for number in range(len(lengths))]
    assert row_runs.ranks(found).tolist() == [place for length in lengths for place in range(length)]
