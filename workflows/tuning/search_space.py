"""The search space of a tuning: a range of values for each of some keys of a config, and points drawn from it.

Each point is drawn with its own key (seed, "trial", number). So with more trials, the first ones stay the same.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, listing
from sparring.components.rng import keyed_rng

Point = dict[str, Any]
"""A value for each name of the space."""

DIGITS = 3
"""Significant digits of a number that is drawn: more would not change a training, and are hard to read. A range that is
narrow for its numbers has more, so that it has points at all."""
MAX_REPEATS = 100
"""After so many draws in a row that repeat earlier points, the space counts as used up."""


class Range(Config):
    """The values that a key may take: exactly one of the five kinds below."""

    uniform: tuple[float, float] | None = None
    """A number between two bounds."""
    loguniform: tuple[float, float] | None = None
    """A number between two bounds above 0, whose logarithm is uniform."""
    integers: tuple[int, int] | None = None
    """A whole number between two bounds, both included."""
    choice: list[Any] | None = Field(None, min_length=1)
    """One of the values."""
    grid: list[Any] | None = Field(None, min_length=1)
    """Each of the values, combined with each value of every other grid."""
    sets: list[str] = []
    """The dotted keys, as for `--set`, that get the value; where none are given, the name itself is the key."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"exactly one of {listing(KINDS)} is needed, got {listing(kinds)}")
        if self.bounds is not None:
            low, high = self.bounds
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"{kinds[0]}: [{low}, {high}]: the first must be below the second")
            if self.loguniform is not None and low <= 0:
                raise ValueError(f"loguniform: [{low}, {high}]: both must be above 0")
        values = self.choice or self.grid or []
        if any(value in values[:index] for index, value in enumerate(values)):
            raise ValueError(f"{kinds[0]}: {values}: a value is repeated; accepted: different values")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and the highest number; None for a list of values."""
        return self.uniform or self.loguniform or self.integers

    @property
    def ends(self) -> list[Any]:
        """The values to check so that the whole range is checked: its two bounds, or every value of a list."""
        return list(self.bounds or self.choice or self.grid or [])

    @property
    def inside(self) -> float | None:
        """A number that could be drawn and is no bound; None where bounds and values say all of the range."""
        if self.bounds is None or self.integers is not None:
            return None
        low, high = self.bounds
        return self.rounded(low + (high - low) / math.pi)

    def draw(self, *key: Any) -> Any:
        """Draw a value, which depends on the random key alone."""
        source = keyed_rng(*key)
        if self.integers is not None:
            return int(source.integers(self.integers[0], self.integers[1], endpoint=True))
        if self.uniform is not None:
            return self.rounded(source.uniform(*self.uniform))
        if self.loguniform is not None:
            low, high = (math.log(end) for end in self.loguniform)
            return self.rounded(math.exp(source.uniform(low, high)))
        values = self.choice or self.grid or []
        return values[int(source.integers(len(values)))]

    def rounded(self, value: float) -> float:
        """The number with few digits, still within the range."""
        assert self.bounds is not None
        low, high = self.bounds
        digits = max(DIGITS, DIGITS - 1 + _magnitude(value) - _magnitude(high - low))
        return min(max(float(f"{value:.{digits}g}"), low), high)

    def has(self, value: Any) -> bool:
        """Whether a value is in the range."""
        if self.bounds is None:
            return value in (self.choice or self.grid or [])
        is_number = isinstance(value, int) if self.integers is not None else isinstance(value, (int, float))
        return is_number and not isinstance(value, bool) and self.bounds[0] <= value <= self.bounds[1]


def _magnitude(value: float) -> int:
    """The power of ten of a number's first digit."""
    return math.floor(math.log10(abs(value))) if value else 0


KINDS = ("uniform", "loguniform", "integers", "choice", "grid")

Space = Mapping[str, Range]


def points(space: Space, count: int, seed: int) -> list[Point]:
    """`count` draws from the ranges that are no grids, each combined with every combination of the grids.

    Fewer where the space has no more points.
    """
    grids = {name: values.grid for name, values in space.items() if values.grid is not None}
    drawn = {name: values for name, values in space.items() if values.grid is None}
    result: list[Point] = []
    for point in _distinct(drawn, count, seed):
        for combination in itertools.product(*grids.values()):
            whole = point | dict(zip(grids, combination, strict=True))
            result.append({name: whole[name] for name in space})
    return result


def _distinct(space: Space, count: int, seed: int) -> Iterator[Point]:
    """Draw different points."""
    seen: list[Point] = []
    repeats = number = 0
    while len(seen) < count and repeats < MAX_REPEATS:
        point = {name: values.draw(seed, "trial", number, name) for name, values in space.items()}
        number += 1
        if point in seen:
            repeats += 1
            continue
        repeats = 0
        seen.append(point)
        yield point


def assignments(space: Space, point: Point) -> dict[str, Any]:
    """The dotted keys that a point sets, and their values."""
    return {key: value for name, value in point.items() for key in space[name].sets or [name]}
