"""The time that is left of a run."""

from __future__ import annotations

import pytest

from sparring.workflows.running.forecast import Forecast


def test_what_finished_steps_took_corrects_the_estimate() -> None:
    """Of 100 s the first 40 took 80; with the prior of 10 s, steps take (10 + 80) / (10 + 40) = 1.8 times as long."""
    forecast = Forecast({"a": 40.0, "b": 30.0, "c": 30.0})
    assert forecast.left({}) == 100
    forecast.finish("a", 80.0)
    assert forecast.factor == pytest.approx(1.8)
    assert forecast.left({}) == pytest.approx(108)


def test_one_estimate_that_was_far_off_says_little_about_others() -> None:
    """100 times as long counts as three times: (10 + 30) / (10 + 10) = 2."""
    forecast = Forecast({"a": 10.0, "b": 90.0})
    forecast.finish("a", 1000.0)
    assert forecast.factor == pytest.approx(2.0)
    assert not forecast.over
    forecast.finish("b", 90.0)
    assert forecast.over


def test_what_every_step_takes_beyond_its_estimate_is_expected_of_the_others() -> None:
    """Two seconds each on a slow store, of steps that were to take 0.1 s; a few of them say nothing yet."""
    forecast = Forecast({str(number): 0.1 for number in range(20)})
    for number in range(10):
        forecast.finish(str(number), 2.3)
        assert forecast.each == pytest.approx([0.0, 0.0, 1.0, 2.0][min(number, 3)])
    assert forecast.left({}) == pytest.approx(10 * (0.1 * forecast.factor + 2.0))
    assert forecast.left({"10": (1.0, None)}) == pytest.approx(10 * (0.1 * forecast.factor + 2.0) - 1.0)


def test_a_running_step_ends_by_its_rate_or_by_its_estimate() -> None:
    forecast = Forecast({"a": 40.0, "b": 60.0})
    progress = {"done": 30, "first": 10, "total": 100, "seconds": 10.0}
    assert forecast.left({"a": (12.0, progress)}) == 35 + 60
    assert forecast.left({"a": (12.0, None)}) == 28 + 60
    assert forecast.left({"a": (500.0, {**progress, "done": 10})}) == 60
    assert forecast.left({"unknown": (5.0, None)}) == 100


def test_steps_at_once_share_the_time() -> None:
    forecast = Forecast({"a": 40.0, "b": 60.0}, at_once=2)
    assert forecast.left({}) == 50
    assert forecast.left({"b": (0.0, None)}) == 60


def test_the_whole_run_takes_less_than_its_steps_that_run_at_once() -> None:
    assert Forecast({"a": 40.0, "b": 60.0}, at_once=2, whole=60.0).whole == 60
    assert Forecast({"a": 40.0, "b": 60.0}).whole == 100


def test_a_range_narrows_as_steps_finish() -> None:
    """The spread counts by the root of the share that the estimate has in what is known: 10 of 10, 10 of 40, 10 of
    90 seconds."""
    forecast = Forecast({"a": 30.0, "b": 50.0, "c": 20.0}, spread=(0.25, 4.0))
    assert forecast.left_between({}) == (25, 400)
    forecast.finish("a", 30.0)
    assert forecast.left_between({}) == pytest.approx((70 / 2, 70 * 2))
    forecast.finish("b", 50.0)
    assert forecast.left_between({}) == pytest.approx((20 * 0.25 ** (1 / 3), 20 * 4 ** (1 / 3)))


def test_a_step_that_ends_by_its_rate_is_sure() -> None:
    forecast = Forecast({"a": 40.0}, spread=(0.5, 2.0))
    progress = {"done": 30, "first": 10, "total": 100, "seconds": 10.0}
    assert forecast.left_between({"a": (12.0, progress)}) == (35, 35)
    assert forecast.left_between({"a": (10.0, None)}) == (10, 70)


def test_nothing_estimated_leaves_nothing() -> None:
    forecast = Forecast({})
    forecast.finish("a", 3.0)
    assert (forecast.total, forecast.left_between({})) == (0, (0, 0))
