"""What a tuning may choose from: a range of values for each of some keys of a config, and points of that space.

Points are keyed by their number (seed, "trial", number), so that more trials are the same ones and others besides.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from components import draws
from components.config import Config, listing

Point = dict[str, Any]
"""A value for each name of a space."""

DIGITS = 3
"""Significant digits of a number that is drawn: nobody reads more, and no training tells more apart."""
DRAWS_A_POINT = 100
"""After so many draws without a point that was not there yet a space counts as used up."""


class Range(Config):
    """The values that a key may take: exactly one of the five kinds."""

    uniform: tuple[float, float] | None = None
    """A number between two others."""
    loguniform: tuple[float, float] | None = None
    """A number between two others above 0, as likely to be below their geometric mean as above."""
    integers: tuple[int, int] | None = None
    """A whole number from one to another, both included."""
    choice: list[Any] | None = Field(None, min_length=1)
    """One of some values."""
    grid: list[Any] | None = Field(None, min_length=1)
    """Each of some values, in turn, with each value of every other grid."""
    sets: list[str] = []
    """The dotted keys that take the value, as `--set` has them; the name itself where none is given."""

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
        if any(value in values[:place] for place, value in enumerate(values)):
            raise ValueError(f"{kinds[0]}: {values}: a value stands twice")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and the highest number; None for a list of values."""
        return self.uniform or self.loguniform or self.integers

    @property
    def ends(self) -> list[Any]:
        """The values that are accepted where all of the range are: its ends, or every one of a list."""
        return list(self.bounds or self.choice or self.grid or [])

    def draw(self, *key: Any) -> Any:
        """A value that depends on the key alone."""
        generator = draws.generator(*key)
        if self.integers is not None:
            return int(generator.integers(self.integers[0], self.integers[1], endpoint=True))
        if self.uniform is not None:
            return self.rounded(generator.uniform(*self.uniform))
        if self.loguniform is not None:
            low, high = (math.log(end) for end in self.loguniform)
            return self.rounded(math.exp(generator.uniform(low, high)))
        values = self.choice or self.grid or []
        return values[int(generator.integers(len(values)))]

    def rounded(self, value: float) -> float:
        """A number of few digits, within the range."""
        assert self.bounds is not None
        return min(max(float(f"{value:.{DIGITS}g}"), self.bounds[0]), self.bounds[1])

    def has(self, value: Any) -> bool:
        """Whether a value is of the range."""
        if self.bounds is None:
            return value in (self.choice or self.grid or [])
        whole = isinstance(value, int) if self.integers is not None else isinstance(value, (int, float))
        return whole and not isinstance(value, bool) and self.bounds[0] <= value <= self.bounds[1]


KINDS = ("uniform", "loguniform", "integers", "choice", "grid")

Space = Mapping[str, Range]


def points(space: Space, count: int, seed: int) -> list[Point]:
    """So many draws of what is no grid, each with every combination of the grids; fewer where there are no more."""
    grids = {name: values.grid for name, values in space.items() if values.grid is not None}
    drawn = {name: values for name, values in space.items() if values.grid is None}
    found: list[Point] = []
    for point in _different(drawn, count, seed):
        for combination in itertools.product(*grids.values()):
            whole = point | dict(zip(grids, combination, strict=True))
            found.append({name: whole[name] for name in space})
    return found


def _different(space: Space, count: int, seed: int) -> Iterator[Point]:
    """Points that differ, in the order of their numbers."""
    seen: list[Point] = []
    fruitless = number = 0
    while len(seen) < count and fruitless < DRAWS_A_POINT:
        point = {name: values.draw(seed, "trial", number, name) for name, values in space.items()}
        number += 1
        if point in seen:
            fruitless += 1
            continue
        fruitless = 0
        seen.append(point)
        yield point


def assignments(space: Space, point: Point) -> dict[str, Any]:
    """The dotted keys that a point sets."""
    return {key: value for name, value in point.items() for key in space[name].sets or [name]}
