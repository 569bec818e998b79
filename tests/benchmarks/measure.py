"""Two sides of a comparison on the same inputs: run by turns, because a machine's speed changes by the minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

HEAD = ["job", "against", "unit", "ours", "theirs", "ratio (range)", "wanted", "reached"]
PAIRS = int(os.environ.get("SPARRING_BENCH_PAIRS", "5"))


@dataclass(frozen=True)
class Compared:
    """Seconds of both sides, a pair of them for each turn."""

    seconds: list[tuple[float, float]]

    @property
    def ours(self) -> float:
        """Our median seconds."""
        return median(seconds for seconds, _ in self.seconds)

    @property
    def theirs(self) -> float:
        """Their median seconds."""
        return median(seconds for _, seconds in self.seconds)

    @property
    def ratios(self) -> list[float]:
        """How many times faster ours was, turn by turn, ascending."""
        return sorted(peer_seconds / seconds for seconds, peer_seconds in self.seconds)

    @property
    def ratio(self) -> float:
        """The median of the turns' ratios, which is not the ratio of the medians."""
        return median(self.ratios)

    def row(self, job: str, against: str, unit: str, amount: float, wanted: float) -> list[str]:
        """A row under `HEAD`: so many units a second on both sides, and whether the ratio is what was wanted."""
        spread = f"{self.ratio:.2f}x ({self.ratios[0]:.2f} to {self.ratios[-1]:.2f})"
        reached = "yes" if self.ratio >= wanted else "no"
        rate, peer_rate = (figure(amount / seconds) for seconds in (self.ours, self.theirs))
        return [job, against, unit, rate, peer_rate, spread, f"{wanted:g}x", reached]


Side = Callable[[], object]
"""One side's work; it returns its seconds, a float, where not all that a call takes is to count."""


def by_turns(subject: Side, peer: Side, *, pairs: int = PAIRS) -> Compared:
    """Seconds of both, each once unmeasured, then by turns; who begins changes from pair to pair."""
    subject(), peer()
    seconds = []
    for pair in range(pairs):
        taken = {side: seconds_of(side) for side in ((subject, peer) if pair % 2 == 0 else (peer, subject))}
        seconds.append((taken[subject], taken[peer]))
    return Compared(seconds)


def seconds_of(side: Side) -> float:
    """Seconds of a call, or those that it returns."""
    began = time.perf_counter()
    counted = side()
    return counted if isinstance(counted, float) else time.perf_counter() - began


def figure(value: float) -> str:
    """Three figures that say something: `12,300`, `456`, `7.89`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
