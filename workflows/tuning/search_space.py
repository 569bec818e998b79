"""The search space of a tuning: a range of values for keys of a config, and points drawn from it.

Each point is drawn with the key (seed, "trial", number), so that the first trials stay the same if more are added. Ray
Tune's own domains draw all points from one random state, and only after Tune has started, too late for `plan`.
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
"""Number of significant digits of a sampled number. More digits would not change a training, and are hard to read.
Narrow ranges have more digits, because otherwise they would have no points."""
MAX_REPEATS = 100
"""Number of successive draws that must repeat earlier points before the space counts as exhausted."""


class Range(Config):
    """Values that a key may take: exactly one of the five kinds below."""

    uniform: tuple[float, float] | None = None
    """A number between two bounds."""
    loguniform: tuple[float, float] | None = None
    """A number between two bounds above 0, whose logarithm is uniform."""
    integers: tuple[int, int] | None = None
    """A whole number between two bounds, both included."""
    choice: list[Any] | None = Field(None, min_length=1)
    """A value from the list."""
    grid: list[Any] | None = Field(None, min_length=1)
    """Each value of the list, combined with each value of all other grids."""
    sets: list[str] = []
    """Dotted keys, as for `--set`, that get the value. If empty, the name itself is the key."""

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
        """Lowest and highest number. None for a list of values."""
        return self.uniform or self.loguniform or self.integers

    @property
    def ends(self) -> list[Any]:
        """Values whose check covers the whole range: its two bounds, or all values of a list."""
        return list(self.bounds or self.choice or self.grid or [])

    @property
    def inside(self) -> float | None:
        """A number between the bounds of a continuous range. None for other ranges."""
        if self.bounds is None or self.integers is not None:
            return None
        low, high = self.bounds
        return self.rounded(low + (high - low) / math.pi)

    def draw(self, *key: Any) -> Any:
        """Draw a value that depends only on the random key."""
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
        """Round a number to few digits, within the range."""
        assert self.bounds is not None
        low, high = self.bounds
        digits = max(DIGITS, DIGITS - 1 + _magnitude(value) - _magnitude(high - low))
        return min(max(float(f"{value:.{digits}g}"), low), high)

    def has(self, value: Any) -> bool:
        """Check whether a value is in the range."""
        if self.bounds is None:
            return value in (self.choice or self.grid or [])
        is_number = isinstance(value, int) if self.integers is not None else isinstance(value, (int, float))
        return is_number and not isinstance(value, bool) and self.bounds[0] <= value <= self.bounds[1]


def _magnitude(value: float) -> int:
    """Compute the power of ten of a number's first digit."""
    return math.floor(math.log10(abs(value))) if value else 0


KINDS = ("uniform", "loguniform", "integers", "choice", "grid")

Space = Mapping[str, Range]


def points(space: Space, count: int, seed: int) -> list[Point]:
    """Draw `count` points from the ranges that are not grids, and combine each with all combinations of the grids.

    There are fewer points if the space is exhausted.
    """
    grids = {name: values.grid for name, values in space.items() if values.grid is not None}
    ranges = {name: values for name, values in space.items() if values.grid is None}
    result: list[Point] = []
    for point in _distinct(ranges, count, seed):
        for combination in itertools.product(*grids.values()):
            whole = point | dict(zip(grids, combination, strict=True))
            result.append({name: whole[name] for name in space})
    return result


def _distinct(space: Space, count: int, seed: int) -> Iterator[Point]:
    """Draw distinct points."""
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
    """List the dotted keys that a point sets, with their values."""
    return {key: value for name, value in point.items() for key in space[name].sets or [name]}
