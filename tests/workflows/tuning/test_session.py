"""ASHA over systems: after which of them it compares trials."""

from __future__ import annotations

import pytest
from ray.tune.schedulers import ASHAScheduler

from sparring.workflows.tuning.session import halving, time_of


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("systems", [2, 3, 4, 5, 6, 9])
def test_trials_are_compared_after_each_system_but_the_last(systems: int, factor: int) -> None:
    """By Ray Tune's own account of where it compares."""
    scheduler = ASHAScheduler(metric="value", mode="max", **halving(systems, factor))
    compared = [time for time, _ in scheduler._brackets[0]._rungs]
    assert sorted(compared) == [time_of(system, factor) for system in range(1, systems)]
    assert time_of(systems, factor) >= scheduler._max_t > time_of(systems - 1, factor)
