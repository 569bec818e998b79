"""Draw small charts of a training: curves over its updates, for one or more seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.components.charts.plot import Canvas, scale, ticks

WIDTH, PLOT = 340, 150
"""Width of the chart, and height of its plot area."""
MOST = 60
"""Maximum number of points of a curve. A longer curve is drawn through means of neighbouring points."""

Points = Sequence[tuple[float, float]]
"""Updates with values, in order."""


@dataclass(frozen=True)
class CurveChart:
    """Named curves over the updates."""

    title: str
    curves: Mapping[str, Sequence[Points]]
    """Curves of all seeds, by name."""
    dashed: frozenset[str] = frozenset()
    """Names of dashed curves."""
    marks: Sequence[float] = ()
    """Updates with a vertical line."""
    x: str = "update"


def mean_curve(seeds: Sequence[Points]) -> list[tuple[float, float]]:
    """Average curves at the updates that all of them have.

    >>> mean_curve([[(1, 2.0), (2, 1.0)], [(1, 4.0)]])
    [(1, 3.0)]
    """
    curves = [dict(points) for points in seeds]
    shared = [update for update in curves[0] if all(update in curve for curve in curves)]
    return [(update, sum(curve[update] for curve in curves) / len(curves)) for update in shared]


def thinned(points: Points, most: int = MOST) -> list[tuple[float, float]]:
    """Replace neighbouring points by their means, so that at most `most` points remain.

    >>> thinned([(1, 4.0), (2, 2.0), (3, 5.0)], 2)
    [(1.5, 3.0), (3.0, 5.0)]
    """
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def svg(chart: CurveChart) -> str:
    """Draw the chart: a thin line for each of several seeds, and a thick line for their mean."""
    curves = {name: [thinned(points) for points in seeds] for name, seeds in chart.curves.items()}
    means = {name: mean for name, seeds in chart.curves.items() if (mean := mean_curve(seeds))}
    kinds = {name: f"c{i % 5}{' dashed' if name in chart.dashed else ''}" for i, name in enumerate(curves)}
    values = [point for seeds in curves.values() for points in seeds for point in points]
    last = max(x for x, _ in values) or 1.0

    canvas = Canvas(start=50, end=WIDTH - 10, top=8, width=WIDTH)
    canvas.top = canvas.legend(kinds.items())
    canvas.bottom = canvas.top + PLOT
    x = scale((0.0, last), canvas.start, canvas.end)
    y = canvas.y_axis(_ticks(min(y for _, y in values), max(y for _, y in values)), "{:g}".format)
    columns = ticks(min(0.0, *(x for x, _ in values)), last)
    canvas.x_axis([(x(mark), f"{mark:,g}") for mark in columns if mark <= last], chart.x)
    for mark in chart.marks:
        canvas.path("level", f"M{x(mark):.1f} {canvas.top}V{canvas.bottom}")

    def draw(points: Points, kind: str) -> None:
        places = [(x(update), y(value)) for update, value in points]
        if len(places) == 1:
            canvas.dot(f"dot {kind}", *places[0], 3)
        else:
            canvas.line(kind, places)

    for name, seeds in curves.items():
        for points in seeds if len(seeds) > 1 else []:
            draw(points, f"seed {kinds[name]}")
        if name in means:
            draw(thinned(means[name]), f"line {kinds[name]}")
    ends = "; ".join(f"{name} ends at {mean[-1][1]:.4g}" for name, mean in means.items())
    return canvas.svg(f"{chart.title}: {ends}", below=38, kind="small")


def _ticks(low: float, high: float) -> list[float]:
    """Choose round values that span low to high, also if both are tiny (learning rates)."""
    size = max(abs(low), abs(high))
    unit = 10.0 ** math.floor(math.log10(size)) if 0 < size < 1e-3 else 1.0
    return [mark * unit for mark in ticks(low / unit, high / unit)]
