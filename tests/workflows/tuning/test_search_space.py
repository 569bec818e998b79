"""Search spaces: what is drawn, that more draws do not change the first ones, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparring.workflows.tuning.search_space import Range, assignments, points


def test_draws_are_in_their_range_and_have_few_digits() -> None:
    log, flat, whole = Range(loguniform=(1e-5, 1e-3)), Range(uniform=(0.2, 0.8)), Range(integers=(2, 4))
    for number in range(200):
        value = log.draw(1, number)
        assert log.has(value)
        assert value == float(f"{value:.3g}")
        assert flat.has(flat.draw(1, number))
    assert {whole.draw(1, number) for number in range(100)} == {2, 3, 4}
    assert {Range(choice=["a", None]).draw(1, number) for number in range(50)} == {"a", None}


def test_draws_have_the_mean_and_deviation_of_their_distribution() -> None:
    """Of a log-uniform range, the logarithm has them."""
    logs = [math.log(Range(loguniform=(1e-4, 1e-2)).draw(3, number)) for number in range(4000)]
    assert np.mean(logs) == pytest.approx(math.log(1e-3), abs=0.1)
    assert np.std(logs) == pytest.approx(math.log(100) / math.sqrt(12), rel=0.05)
    flat = [Range(uniform=(-1, 3)).draw(3, number) for number in range(4000)]
    assert np.mean(flat) == pytest.approx(1.0, abs=0.1)
    assert np.std(flat) == pytest.approx(4 / math.sqrt(12), rel=0.05)


def test_a_narrow_range_has_points_too() -> None:
    """Rounding stays within it, and leaves some tens of values."""
    for narrow in (Range(uniform=(0.999, 0.9999)), Range(loguniform=(0.999, 0.9999)), Range(uniform=(-1009, -1000))):
        drawn = {narrow.draw(1, number) for number in range(200)}
        assert len(drawn) > 20
        assert all(narrow.has(value) for value in drawn)
    assert Range(uniform=(0.12341, 0.12349)).rounded(0.1234) == 0.12341
    assert Range(uniform=(-1, 1)).rounded(0.0) == 0.0


def test_more_draws_do_not_change_the_first_points() -> None:
    space = {"a": Range(loguniform=(1e-5, 1e-3)), "b": Range(choice=[1, 2, 3])}
    few, many = points(space, 5, seed=0), points(space, 12, seed=0)
    assert (len(few), len(many)) == (5, 12)
    assert many[:5] == few
    assert points(space, 5, seed=1) != few
    wider = points(
        {**space, "c": Range(integers=(1, 9))}, 5, seed=0
    )  # another key does not change the draws of the others
    assert [{name: point[name] for name in ("a", "b")} for point in wider] == few


def test_a_grid_is_every_combination_with_every_draw() -> None:
    space = {"a": Range(grid=[1, 2]), "x": Range(uniform=(0, 1)), "b": Range(grid=["p", "q"])}
    drawn = points(space, 2, seed=0)
    assert [(point["a"], point["b"]) for point in drawn] == [(1, "p"), (1, "q"), (2, "p"), (2, "q")] * 2
    assert len({point["x"] for point in drawn[:4]}) == 1
    assert drawn[4]["x"] != drawn[0]["x"]
    assert list(drawn[0]) == ["a", "x", "b"]
    assert len(points({"a": Range(grid=[1, 2])}, 7, seed=0)) == 2  # the grid has no more points


def test_no_point_is_drawn_twice() -> None:
    drawn = points({"a": Range(choice=[1, 2]), "b": Range(choice=[1, 2])}, 50, seed=0)
    assert sorted((point["a"], point["b"]) for point in drawn) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_name_may_set_several_keys() -> None:
    space = {"heat": Range(uniform=(0, 1), sets=["x.heat", "y.0.heat"]), "k": Range(integers=(1, 9))}
    assert assignments(space, {"heat": 0.5, "k": 3}) == {"x.heat": 0.5, "y.0.heat": 0.5, "k": 3}


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({}, r"exactly one of uniform, loguniform, integers, choice, grid is needed, got \(none\)"),
        ({"uniform": [0, 1], "grid": [1]}, r"exactly one of .* is needed, got uniform, grid"),
        ({"uniform": [1, 1]}, r"uniform: \[1\.0, 1\.0\]: the first must be below the second"),
        ({"uniform": [0, ".inf"]}, r"uniform"),
        ({"integers": [3, 1]}, r"integers: \[3, 1\]: the first must be below"),
        ({"integers": [1, 2.5]}, r"integers"),
        ({"loguniform": [0, 1]}, r"loguniform: \[0\.0, 1\.0\]: both must be above 0"),
        ({"loguniform": [1e-5]}, r"loguniform"),
        ({"choice": []}, r"choice"),
        ({"grid": [1, 2, 1]}, r"grid: \[1, 2, 1\]: a value is repeated"),
        ({"normal": [0, 1]}, r"normal"),
    ],
)
def test_a_wrong_range_is_refused(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Range.model_validate(tree)


def test_a_range_knows_its_values_and_its_ends() -> None:
    assert Range(integers=(1, 3)).has(3)
    assert not Range(integers=(1, 3)).has(2.0)
    assert not Range(uniform=(0, 1)).has(True)
    assert not Range(uniform=(0, 1)).has(2)
    assert Range(choice=["a"]).has("a")
    assert Range(choice=["a", "b"]).ends == ["a", "b"]
    assert Range(loguniform=(1, 10)).ends == [1, 10]
