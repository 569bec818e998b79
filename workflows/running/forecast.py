"""The remaining time of a run: estimates of its steps, corrected by how long finished steps took. The range narrows as
steps finish."""

from collections.abc import Mapping
from statistics import median
from typing import Any

PRIOR = 0.1
"""Weight of the estimate, as a share of the run: the first finished steps alone do not decide."""
MOST = 3.0
"""Limit of a step's time as a multiple of its estimate. Beyond it, or below its inverse, a step says nothing more about
the remaining steps."""

EXACT = (1.0, 1.0)
"""The range of times that are certain."""

FIRST = 3
"""Number of imaginary finished steps that took no longer than estimated."""

Running = Mapping[str, tuple[float, Mapping[str, Any] | None]]
"""Running steps by their artifacts' names: the seconds since each began, and its progress."""


class Forecast:
    """The remaining seconds of a run, whose steps go by the names of their artifacts."""

    def __init__(
        self,
        estimated: Mapping[str, float],
        *,
        at_once: int = 1,
        whole: float | None = None,
        spread: tuple[float, float] = EXACT,
    ) -> None:
        """`spread` is the range of the run's time as factors of the estimate. `whole` is less than the sum of the steps
        if steps run at once."""
        self.total = sum(estimated.values())
        """Estimated seconds of all steps."""
        self.whole = self.total if whole is None else whole
        """Estimated seconds of the run."""
        self.spread = spread
        self._remaining = dict(estimated)
        self._at_once = at_once
        self._estimated = self._took = PRIOR * self.total
        self._beyond = [0.0] * FIRST

    def finish(self, name: str, seconds: float) -> None:
        """Record that a step is done, and how long it took. Steps that were not to run are ignored."""
        if name not in self._remaining:
            return
        estimated = self._remaining.pop(name)
        self._estimated += estimated
        self._took += min(max(seconds, estimated / MOST), estimated * MOST)
        self._beyond.append(max(0.0, seconds - estimated * MOST))

    @property
    def over(self) -> bool:
        """True if every estimated step is done."""
        return not self._remaining

    @property
    def factor(self) -> float:
        """Time of steps as a multiple of their estimates."""
        return self._took / self._estimated if self._estimated else 1.0

    @property
    def each(self) -> float:
        """Seconds that every step takes and that were not estimated, for example on a slow store: the median of what
        finished steps took beyond `MOST` times their estimates."""
        return median(self._beyond)

    def left(self, running: Running, times: float = 1.0) -> float:
        """Predict the seconds until the run ends, if steps take so many `times` as long as now expected.

        The progress of a running step has a rate, which replaces the estimate.
        """
        waiting = sum(self._of(name, times) for name in self._remaining if name not in running)
        running_seconds = [self._left_of(name, times, *state) for name, state in running.items()]
        return max([*running_seconds, (waiting + sum(running_seconds)) / max(1, self._at_once)])

    def left_between(self, running: Running) -> tuple[float, float]:
        """Predict the least and the most seconds until the run ends. The spread counts less, the more of the run is
        done."""
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
        return self._remaining.get(name, 0.0) * self.factor * times + self.each
