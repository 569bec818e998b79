"""The time that is left of a run: what was estimated of each step, corrected by how long finished ones took, as a range
that narrows as steps finish."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

PRIOR = 0.1
"""The estimate itself counts as this share of the whole run, measured as estimated: the first steps do not decide."""
MOST = 3.0
"""A step that took so many times as long as estimated, or less than so small a part of it, says nothing more about the
others."""

EXACT = (1.0, 1.0)

FIRST = 3
"""So many steps that took no longer are counted beside those that are done."""

Running = Mapping[str, tuple[float, Mapping[str, Any] | None]]
"""The steps that are running, by their artifacts' names: the seconds of each, and its progress."""


class Forecast:
    """Seconds that are left, by the names of artifacts."""

    def __init__(
        self,
        estimated: Mapping[str, float],
        *,
        at_once: int = 1,
        whole: float | None = None,
        spread: tuple[float, float] = EXACT,
    ) -> None:
        """`spread` says how sure the estimate is: the run takes between so many times as long and so many times."""
        self.total = sum(estimated.values())
        """Seconds of all steps, as estimated before the run."""
        self.whole = self.total if whole is None else whole
        """Seconds of the run: less, where steps run at once."""
        self.spread = spread
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

    def left(self, running: Running, times: float = 1.0) -> float:
        """Seconds until the run ends, if steps take so many `times` as long as now expected.

        A step whose progress has a rate ends by that rate.
        """
        waiting = sum(self._of(name, times) for name in self._left if name not in running)
        own = [self._left_of(name, times, *about) for name, about in running.items()]
        return max([*own, (waiting + sum(own)) / max(1, self._at_once)])

    def left_between(self, running: Running) -> tuple[float, float]:
        """The least and the most seconds until the run ends. The spread of the estimate counts less, the more of the
        run has been compared with it."""
        sure = (PRIOR * self.total / self._estimated) ** 0.5 if self._estimated else 1.0
        least, most = (self.left(running, factor**sure) for factor in self.spread)
        return least, most

    def _left_of(self, name: str, times: float, seconds: float, progress: Mapping[str, Any] | None) -> float:
        if progress and progress["total"]:
            done = progress["done"] - progress["first"]
            if done > 0 and progress["seconds"] > 0:
                return (progress["total"] - progress["done"]) * progress["seconds"] / done
        return max(0.0, self._of(name, times) - seconds)

    def _of(self, name: str, times: float) -> float:
        return self._left.get(name, 0.0) * self.factor * times + self.each
