"""The course of a training: how fast it learns at each step, and from which rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sparring.components.training.config import TrainConfig
from sparring.components.training.prepared import share
from sparring.components.training.schedule import learning_rate, visits_of_update
from tests.support import toy


class TestSchedule:
    def config(self, **options: Any) -> Any:
        return toy.train_config(**{"updates": 10, "learning_rate": 1.0, **options})

    def rates(self, config: Any, count: int) -> list[float]:
        return [round(learning_rate(config, step), 6) for step in range(count)]

    def test_the_warm_up_takes_its_share_and_the_rest_falls_evenly(self) -> None:
        assert self.rates(self.config(warmup=0.4), 10) == [
            0.25,
            0.5,
            0.75,
            1.0,
            1.0,
            round(5 / 6, 6),
            round(4 / 6, 6),
            0.5,
            round(2 / 6, 6),
            round(1 / 6, 6),
        ]

    def test_without_a_warm_up_it_begins_at_the_top(self) -> None:
        assert self.rates(self.config(warmup=0.0), 10) == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]

    def test_constant_stays_after_the_warm_up(self) -> None:
        assert self.rates(self.config(warmup=0.2, schedule="constant"), 5) == [0.5, 1.0, 1.0, 1.0, 1.0]

    @pytest.mark.parametrize("warmup", [0.0, 0.05, 0.13, 0.25, 1.0])
    @pytest.mark.parametrize("steps", [1, 7, 30])
    def test_it_is_never_above_the_learning_rate_and_never_below_nothing(self, warmup: float, steps: int) -> None:
        config = self.config(updates=steps, warmup=warmup)
        rates = self.rates(config, steps)
        assert all(0 < rate <= 1 for rate in rates)
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1])
        assert rates[peak:] == sorted(rates[peak:], reverse=True)

    def test_several_trainings_share_one_schedule(self) -> None:
        config = self.config(updates=5, schedule_updates=20, warmup=0.5)
        assert self.rates(config, 5) == [0.1, 0.2, 0.3, 0.4, 0.5]
        assert learning_rate(config, 19) == pytest.approx(0.1)
        assert learning_rate(config, 20) == 0
        assert learning_rate(config, 35) == 0


class TestVisitsOfAnUpdate:
    def test_each_pass_has_every_row_once_in_an_order_of_its_own(self) -> None:
        config = toy.train_config(batch=4)
        rows = [visit.row for update in range(15) for visit in visits_of_update(config, 12, seed=3, update=update)]
        passes = [rows[i : i + 12] for i in range(0, 60, 12)]
        assert all(sorted(order) == list(range(12)) for order in passes)
        assert len({tuple(order) for order in passes}) == 5

    def test_a_batch_may_span_two_passes(self) -> None:
        config = toy.train_config(batch=5)
        visits = [visit for update in range(7) for visit in visits_of_update(config, 7, seed=3, update=update)]
        assert [visit.visit for visit in visits] == [visit for visit in range(5) for _ in range(7)]
        rows = [visit.row for visit in visits]
        assert len(rows) == 35
        assert set(Counter(rows).values()) == {5}

    def test_a_batch_may_be_larger_than_the_table(self) -> None:
        rows = [visit.row for visit in visits_of_update(toy.train_config(batch=10), 4, seed=3, update=0)]
        assert sorted(rows[:4]) == sorted(rows[4:8]) == [0, 1, 2, 3]

    def test_an_update_is_known_without_those_before_it_and_depends_on_the_seed(self) -> None:
        config = toy.train_config(batch=4)
        late = visits_of_update(config, 10, seed=3, update=9)
        [visits_of_update(config, 10, seed=3, update=update) for update in range(9)]
        assert visits_of_update(config, 10, seed=3, update=9) == late
        assert visits_of_update(config, 10, seed=4, update=9) != late

    def test_workers_take_consecutive_shares_of_the_same_rows(self) -> None:
        rows = list(range(12))
        assert [share(rows, 3, part) for part in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert share(rows, 1, 0) == rows
        assert [share(rows, 5, part) for part in range(5)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9], [10, 11]]


class TestNoam:
    """`m min(s^-0.5, s w^-1.5)` (Chuang et al., 2023, Appendix B.1), by its highest value."""

    @pytest.mark.parametrize("step", [1, 100, 9_999, 10_000, 10_001, 14_720])
    def test_the_public_codes_formula(self, step: int) -> None:
        """Their 2e-3 and 10,000 steps of warm-up: a peak of 2e-5."""
        config = toy.train_config(
            updates=100, schedule_updates=20_000, warmup=0.5, learning_rate=2e-3 / 10_000**0.5, schedule="noam"
        )
        assert learning_rate(config, step - 1) == pytest.approx(2e-3 * min(step**-0.5, step * 10_000**-1.5))
        assert learning_rate(config, 9_999) == pytest.approx(2e-5)

    def test_without_a_warm_up_it_begins_at_the_top(self) -> None:
        config = toy.train_config(updates=10, warmup=0.0, learning_rate=1.0, schedule="noam")
        assert [learning_rate(config, step) for step in (0, 3)] == pytest.approx([1.0, 0.5])


def test_a_schedule_that_is_over_too_early_is_refused() -> None:
    """The linear one is at 0 then; others go on."""
    losses = [{"function": "components.losses.listwise.cross_entropy"}]
    with pytest.raises(
        ValueError, match="schedule_updates: 1 is less than this training's 2 updates, so the last updates would"
    ):
        TrainConfig(updates=2, schedule_updates=1, losses=losses)
    assert TrainConfig(updates=2, schedule_updates=1, schedule="constant", losses=losses).schedule_updates == 1


def test_a_training_that_would_look_at_none_of_its_weights_is_refused() -> None:
    losses = [{"function": "components.losses.listwise.cross_entropy"}]
    with pytest.raises(
        ValueError, match="every: 3 is more than the 2 updates, so trained weights would never be validated"
    ):
        TrainConfig(updates=2, validate_on_dev={"every": 3}, losses=losses)
