"""The time that is left of a run: what was estimated of each step, corrected by how long finished ones took."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

PRIOR = 0.1
"""The estimate itself counts as this share of the whole run, measured as estimated: the first steps do not decide."""
MOST = 3.0
"""A step that took so many times as long as estimated, or less than so small a part of it, says nothing more about the
others."""

FIRST = 3
"""So many steps that took no longer are counted beside those that are done."""


class Forecast:
    """Seconds that are left, by the names of artifacts."""

    def __init__(self, estimated: Mapping[str, float], *, at_once: int = 1, whole: float | None = None) -> None:
        self.total = sum(estimated.values())
        """Seconds of all steps, as estimated before the run."""
        self.whole = self.total if whole is None else whole
        """Seconds of the run: less, where steps run at once."""
        self._left = dict(estimated)
        self._at_once = at_once
        self._estimated = self._took = PRIOR * self.total
        self._beyond = [0.0] * FIRST

    def finish(self, name: str, seconds: float) -> None:
        """A step is done, and took so long."""
        estimated = self._left.pop(name, 0.0)
        self._estimated += estimated
        self._took += min(max(seconds, estimated / MOST), estimated * MOST)
        self._beyond.append(max(0.0, seconds - estimated * MOST))

    @property
    def over(self) -> bool:
        """Whether every step that was estimated is done."""
        return not self._left

    @property
    def factor(self) -> float:
        """How many times longer than estimated steps take."""
        return self._took / self._estimated if self._estimated else 1.0

    @property
    def each(self) -> float:
        """Seconds that a step takes whatever it does, and that were not estimated: what half of the finished steps took
        beyond `MOST` times their estimates, as on a store that is slow to answer."""
        return median(self._beyond)

    def left(self, running: Mapping[str, tuple[float, Mapping[str, Any] | None]]) -> float:
        """Seconds until the run ends; `running` has the seconds of each running step, and its progress.

        A step whose progress has a rate ends by that rate.
        """
        waiting = sum(self._of(name) for name in self._left if name not in running)
        own = [self._left_of(name, *about) for name, about in running.items()]
        return max([*own, (waiting + sum(own)) / max(1, self._at_once)])

    def _left_of(self, name: str, seconds: float, progress: Mapping[str, Any] | None) -> float:
        if progress and progress["total"]:
            done = progress["done"] - progress["first"]
            if done > 0 and progress["seconds"] > 0:
                return (progress["total"] - progress["done"]) * progress["seconds"] / done
        return max(0.0, self._of(name) - seconds)

    def _of(self, name: str) -> float:
        return self._left.get(name, 0.0) * self.factor + self.each
