"""Charts as small inline SVG: coloured by the page they stand in, readable by screen readers, no script.

Drawn here and not with a plotting library, as a figure then follows the page into dark mode, print and any width.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from components.measures import spread

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 44, 124, 14, 40
_AXES = {"round": "round (0: after the warm-up)"}


@dataclass(frozen=True)
class Point:
    """A value at a round: its mean and, over several seeds, its standard deviation."""

    round: int
    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Chart:
    """One measure over the rounds, or what else the axis says: curves by name, and systems without as level lines."""

    measure: str
    curves: dict[str, list[Point]] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    axis: str = "round"


def charts(rows: Sequence[dict[str, Any]]) -> list[Chart]:
    """A chart for each measure of one collection's rows; none where no system has rounds."""
    rounds = {row["system"]: row["round"] for row in rows}
    curve_of = _curves({system: number for system, number in rounds.items() if number is not None})
    if not curve_of:
        return []
    return [
        _chart(measure, [row for row in rows if row["measure"] == measure], curve_of)
        for measure in dict.fromkeys(row["measure"] for row in rows)
    ]


def _curves(rounds: dict[str, int]) -> dict[str, str]:
    """Which curve each system with a round is on: `retriever 2` is on `retriever`, and so is `warm retriever`.

    `ranker 1 over retriever 1` is on `ranker`, unless several rankers share a round; then on `ranker over retriever`.
    """
    players = {system: system.removeprefix("warm ").split()[0] for system in rounds}
    short = {system: player for system, player in players.items() if player in ("retriever", "ranker")}
    seen = [(short[system], number) for system, number in rounds.items() if system in short]
    shared = {name for name, number in seen if seen.count((name, number)) > 1}
    long = {system: re.sub(r"\s+\d+\b|\bwarm\s+", "", system) for system in rounds}
    return {
        system: name if (name := short.get(system, "")) and name not in shared else long[system] for system in rounds
    }


def _chart(measure: str, rows: Sequence[dict[str, Any]], curve_of: dict[str, str]) -> Chart:
    chart = Chart(measure)
    for system in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == system]
        mean, deviation = spread(row["value"] for row in own)
        if system in curve_of:
            chart.curves.setdefault(curve_of[system], []).append(Point(own[0]["round"], mean, deviation))
        else:
            chart.levels[system] = mean
        if system == "warm retriever":  # what the game has to beat
            chart.levels[system] = mean
    for points in chart.curves.values():
        points.sort(key=lambda point: point.round)
    return chart


def svg(chart: Chart) -> str:
    """The chart. Classes `c0`, `c1`, ... are the curves' colours, `level` the level lines', given by the page."""
    points = [point for curve in chart.curves.values() for point in curve]
    last = max(1, *(point.round for point in points))
    edges = [point.value + side * (point.deviation or 0) for point in points for side in (-1, 1)]
    marks = ticks(min([*edges, *chart.levels.values()]), max([*edges, *chart.levels.values()]))

    def x(number: float) -> float:
        return LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * number / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - marks[0]) / (marks[-1] - marks[0])

    parts = [*_axes(marks, last, x, y, chart.axis)]
    labels = []
    for name, value in chart.levels.items():
        parts.append(f'<path class="level" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"><title>'
                     f"{escape(name)}: {value:.3f}</title></path>")  # fmt: skip
        labels.append((y(value), name, "level"))
    for number, (name, curve) in enumerate(chart.curves.items()):
        parts += _curve(name, curve, f"c{number % 5}", x, y, chart.axis)
        labels.append((y(curve[-1].value), name, f"c{number % 5}"))
    parts += _labels(labels)
    said = "; ".join(f"{name} {', '.join(f'{p.value:.3f}' for p in curve)}" for name, curve in chart.curves.items())
    head = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.measure)} by '
        f"{escape(chart.axis)}: "
    )
    return f'{head}{escape(said)}">{"".join(parts)}</svg>'


def _axes(marks: list[float], last: int, x: Any, y: Any, axis: str) -> list[str]:
    """Grid lines with values, and the rounds."""
    digits = max(2, -math.floor(math.log10(marks[1] - marks[0])))
    parts = []
    for tick in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.{digits}f}</text>'
        )
    every = max(1, math.ceil(last / 10))
    for number in range(0, last + 1, every):
        parts.append(
            f'<text class="tick" x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(_AXES.get(axis, axis))}</text>'
    )
    return parts


def _curve(name: str, curve: list[Point], colour: str, x: Any, y: Any, axis: str) -> list[str]:
    """A line through the points, a whisker for each deviation, a dot for each value."""
    line = "L".join(f"{x(point.round):.1f} {y(point.value):.1f}" for point in curve)
    parts = [f'<path class="line {colour}" d="M{line}"/>']
    for point in curve:
        says = f"{name}, {axis} {point.round}: {point.value:.3f}"
        if point.deviation is not None:
            says += f" ± {point.deviation:.3f}"
            low, high = y(point.value - point.deviation), y(point.value + point.deviation)
            parts.append(f'<path class="whisker {colour}" d="M{x(point.round):.1f} {low:.1f}V{high:.1f}"/>')
        at = f'cx="{x(point.round):.1f}" cy="{y(point.value):.1f}"'
        parts.append(f'<circle class="dot {colour}" {at} r="3.5"><title>{escape(says)}</title></circle>')
    return parts


def _labels(labels: list[tuple[float, str, str]]) -> list[str]:
    """Names at the right end of their lines, pushed apart where they would cover each other."""
    labels = sorted(labels)
    gap, heights = 14.0, list[float]()
    for at, _, _ in labels:
        heights.append(max(at, heights[-1] + gap) if heights else at)
    below = HEIGHT - BOTTOM + 4.0
    for number in reversed(range(len(heights))):
        heights[number] = below = min(heights[number], below)
        below -= gap
    edge = WIDTH - RIGHT
    return [
        f'<path class="lead {colour}" d="M{edge + 2} {own:.1f}L{edge + 10} {at:.1f}"/>'
        f'<text class="name {colour}" x="{edge + 13}" y="{at + 4:.1f}">{escape(short(name))}</text>'
        for at, (own, name, colour) in zip(heights, labels, strict=True)
    ]


def short(name: str, length: int = 19) -> str:
    """A name that fits beside a figure."""
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def ticks(low: float, high: float) -> list[float]:
    """Four to seven round values that span low to high."""
    if high - low < 1e-6:
        low, high = low - 0.05, high + 0.05
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]
