"""Small charts of a training: curves over its updates, of one seed or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sparring.components.charts.axes import ticks

WIDTH, PLOT, LEFT, RIGHT, TOP, BOTTOM, LINE = 340, 150, 50, 10, 8, 38, 16
"""The chart's width, the height of its plot, the margins, and the height of a line of names."""
MOST = 60
"""Points that a curve is drawn with; a longer one has means of neighbouring points."""
LETTER = 6.4
"""About how wide a letter is."""

Points = Sequence[tuple[float, float]]
"""Updates with values, in order."""


@dataclass(frozen=True)
class CurveChart:
    """Named curves over the updates."""

    title: str
    curves: Mapping[str, Sequence[Points]]
    """By name, the curve of each seed."""
    dashed: frozenset[str] = frozenset()
    """Names of curves that are drawn dashed."""
    marks: Sequence[float] = ()
    """Updates to be marked by a vertical line."""
    x: str = "update"


def mean_curve(seeds: Sequence[Points]) -> list[tuple[float, float]]:
    """The mean over the seeds at the updates that all of them have.

    >>> mean_curve([[(1, 2.0), (2, 1.0)], [(1, 4.0)]])
    [(1, 3.0)]
    """
    values = [dict(points) for points in seeds]
    shared = [at for at in values[0] if all(at in one for one in values)]
    return [(at, sum(one[at] for one in values) / len(values)) for at in shared]


def thinned(points: Points, most: int = MOST) -> list[tuple[float, float]]:
    """At most so many points: means of neighbours, each placed at the mean of their updates.

    >>> thinned([(1, 4.0), (2, 2.0), (3, 5.0)], 2)
    [(1.5, 3.0), (3.0, 5.0)]
    """
    if len(points) <= most:
        return list(points)
    each = -(-len(points) // most)
    parts = [points[start : start + each] for start in range(0, len(points), each)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def svg(chart: CurveChart) -> str:
    """The chart as SVG. Of several seeds each has a thin line, and their mean a thick one where they share updates."""
    curves = {name: [thinned(points) for points in seeds] for name, seeds in chart.curves.items()}
    values = [(x, y) for seeds in curves.values() for points in seeds for x, y in points]
    rows = _ticks(min(y for _, y in values), max(y for _, y in values))
    columns = ticks(min(0.0, *(x for x, _ in values)), max(x for x, _ in values))
    last = max(x for x, _ in values) or 1.0
    means = {name: mean for name, seeds in chart.curves.items() if (mean := mean_curve(seeds))}
    names, top = _names(chart)
    bottom = top + PLOT

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / last

    def y(value: float) -> float:
        return bottom - PLOT * (value - rows[0]) / (rows[-1] - rows[0])

    parts = []
    for mark in rows:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for mark in (mark for mark in columns if mark <= last):
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{bottom + 17}" text-anchor="middle">{mark:,g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{bottom + 33}" text-anchor="middle">{escape(chart.x)}</text>')
    parts += [f'<path class="level" d="M{x(mark):.1f} {top}V{bottom}"/>' for mark in chart.marks]
    for number, (name, seeds) in enumerate(curves.items()):
        shape = f"c{number % 5}{' dashed' if name in chart.dashed else ''}"
        if len(seeds) > 1:
            parts += [_line(points, f"seed {shape}", x, y) for points in seeds]
        if name in means:
            parts.append(_line(thinned(means[name]), f"line {shape}", x, y))
    ends = "; ".join(f"{name} ends at {mean[-1][1]:.4g}" for name, mean in means.items())
    head = f'<svg class="chart small" viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" '
    return f'{head}aria-label="{escape(chart.title)}: {escape(ends)}">{"".join(names + parts)}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    """Round values that span low to high, however small both are (learning rates)."""
    size = max(abs(low), abs(high))
    scale = 10.0 ** math.floor(math.log10(size)) if 0 < size < 1e-3 else 1.0
    return [mark * scale for mark in ticks(low / scale, high / scale)]


def _line(points: Points, kind: str, x, y) -> str:  # type: ignore[no-untyped-def]
    """A line through the points; a single one is a dot."""
    if len(points) == 1:
        return f'<circle class="dot {kind}" cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3"/>'
    return f'<path class="{kind}" d="M{"L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)}"/>'


def _names(chart: CurveChart) -> tuple[list[str], int]:
    """The curves' names above the plot, as many a line as fit, and where the plot begins."""
    parts, across, down = [], float(LEFT), TOP + 8
    for number, name in enumerate(chart.curves):
        wide = 22 + LETTER * len(name) + 12
        if across > LEFT and across + wide > WIDTH:
            across, down = float(LEFT), down + LINE
        dashed = " dashed" if name in chart.dashed else ""
        parts.append(f'<path class="line c{number % 5}{dashed}" d="M{across:.0f} {down - 4}h16"/>')
        parts.append(f'<text class="name c{number % 5}" x="{across + 22:.0f}" y="{down}">{escape(name)}</text>')
        across += wide
    return parts, down + 12
