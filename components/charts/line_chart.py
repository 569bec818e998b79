"""Line charts: a measure over the rounds of a training, or over another whole-number axis."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from sparring.components.charts.axes import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, height_scale, ticks, x_axis, y_axis
from sparring.components.charts.axes import svg as wrapped
from sparring.components.evaluation.measures import mean_and_deviation

RIGHT = 124
"""Margin for the names of the lines."""
LENGTH, LINE = 19, 12.0
"""Characters of a name that fit into the margin, and the height of a line of them."""
LEVELS = 5
"""The most horizontal lines of a chart."""
_AXIS_TITLES = {"round": "round (0: after the warm-up)"}


@dataclass(frozen=True)
class Point:
    """The mean value at a round and, over several seeds, its standard deviation."""

    round: int
    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Chart:
    """One measure over the rounds, or over another axis. Systems without rounds are horizontal lines, `levels`."""

    measure: str
    curves: dict[str, list[Point]] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    axis: str = "round"


def charts(rows: Sequence[dict[str, Any]]) -> list[Chart]:
    """A chart for each measure in the result rows of one collection; none if no system has rounds."""
    rounds = {row["system"]: row["round"] for row in rows}
    curve_of = _curves({system: number for system, number in rounds.items() if number is not None})
    if not curve_of:
        return []
    return [
        _chart(measure, [row for row in rows if row["measure"] == measure], curve_of)
        for measure in dict.fromkeys(row["measure"] for row in rows)
    ]


def _curves(rounds: dict[str, int]) -> dict[str, str]:
    """The name of each system's curve: `retriever 2` and `warm retriever` are on `retriever`.

    `ranker 1 over retriever 1` is on `ranker`, but on `ranker over retriever` if a round has several rankers.
    """
    models = {system: system.removeprefix("warm ").split()[0] for system in rounds}
    short = {system: model for system, model in models.items() if model in ("retriever", "ranker")}
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
        mean, deviation = mean_and_deviation(row["value"] for row in own)
        if system in curve_of:
            chart.curves.setdefault(curve_of[system], []).append(Point(own[0]["round"], mean, deviation))
        else:
            chart.levels[system] = mean
        if system == "warm retriever":  # what training must improve on
            chart.levels[system] = mean
    for points in chart.curves.values():
        points.sort(key=lambda point: point.round)
    return replace(chart, levels=_told_apart(chart.levels))


def _told_apart(levels: dict[str, float]) -> dict[str, float]:
    """The horizontal lines that can be told apart: of too many, those of single systems, and the best of the others."""
    if len(levels) <= LEVELS:
        return levels
    single = [name for name in levels if not re.search(r" (\+|over|by|with) ", name)]
    others = [name for name in levels if name not in single]
    kept = {*single[: LEVELS - 1], *([max(others, key=lambda name: levels[name])] if others else [])}
    return {name: value for name, value in levels.items() if name in kept}


def svg(chart: Chart) -> str:
    """The chart as SVG. The page colours the curves by the classes `c0` to `c4`, the horizontal lines by `level`."""
    points = [point for curve in chart.curves.values() for point in curve]
    last = max(1, *(point.round for point in points))
    edges = [point.value + side * (point.deviation or 0) for point in points for side in (-1, 1)]
    marks = ticks(min([*edges, *chart.levels.values()]), max([*edges, *chart.levels.values()]))

    def x(number: float) -> float:
        return LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * number / last

    y = height_scale(marks)
    numbers = range(0, last + 1, max(1, math.ceil(last / 10)))
    title = _AXIS_TITLES.get(chart.axis, chart.axis)
    parts = [*y_axis(marks, RIGHT), *x_axis([(x(number), str(number)) for number in numbers], title, RIGHT)]
    labels = []
    for name, value in chart.levels.items():
        parts.append(
            f'<path class="level" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"><title>'
            f"{escape(name)}: {value:.3f}</title></path>"
        )
        labels.append((y(value), name, "level"))
    for number, (name, curve) in enumerate(chart.curves.items()):
        parts += _curve(name, curve, f"c{number % 5}", x, y, chart.axis)
        labels.append((y(curve[-1].value), name, f"c{number % 5}"))
    parts += _labels(labels)
    values = "; ".join(f"{name} {', '.join(f'{p.value:.3f}' for p in curve)}" for name, curve in chart.curves.items())
    return wrapped(f"{chart.measure} by {chart.axis}: {values}", parts)


def _curve(name: str, curve: list[Point], colour: str, x: Any, y: Any, axis: str) -> list[str]:
    """A line through the points, a dot for each, and a whisker for each deviation."""
    line = "L".join(f"{x(point.round):.1f} {y(point.value):.1f}" for point in curve)
    parts = [f'<path class="line {colour}" d="M{line}"/>']
    for point in curve:
        title = f"{name}, {axis} {point.round}: {point.value:.3f}"
        if point.deviation is not None:
            title += f" ± {point.deviation:.3f}"
            low, high = y(point.value - point.deviation), y(point.value + point.deviation)
            parts.append(f'<path class="whisker {colour}" d="M{x(point.round):.1f} {low:.1f}V{high:.1f}"/>')
        at = f'cx="{x(point.round):.1f}" cy="{y(point.value):.1f}"'
        parts.append(f'<circle class="dot {colour}" {at} r="3.5"><title>{escape(title)}</title></circle>')
    return parts


def _labels(labels: list[tuple[float, str, str]]) -> list[str]:
    """Names at the right end of their lines, in two lines of text where they are long and there is room, moved apart
    where they would overlap."""
    labels = sorted(labels)
    texts = [_lines(name) for _, name, _ in labels]
    if sum(map(_height, texts)) > HEIGHT - BOTTOM - TOP:
        texts = [[_short(name)] for _, name, _ in labels]
    tops = list[float]()
    for (at, *_), text in zip(labels, texts, strict=True):
        top = at - _height(text) / 2
        tops.append(max(top, tops[-1] + _height(texts[len(tops) - 1])) if tops else top)
    below = HEIGHT - BOTTOM + 4 + LINE / 2
    for number in reversed(range(len(tops))):
        tops[number] = below = min(tops[number], below - _height(texts[number]))
    edge = WIDTH - RIGHT
    parts = []
    for top, text, (own, name, colour) in zip(tops, texts, labels, strict=True):
        parts.append(
            f'<path class="lead {colour}" d="M{edge + 2} {own:.1f}L{edge + 10} {top + _height(text) / 2:.1f}"/>'
        )
        for number, line in enumerate(text):
            title = f"<title>{escape(name)}</title>" if " ".join(text) != name else ""
            y = top + number * LINE + LINE / 2 + 5
            parts.append(f'<text class="name {colour}" x="{edge + 13}" y="{y:.1f}">{escape(line)}{title}</text>')
    return parts


def _lines(name: str) -> list[str]:
    """A name in at most two lines."""
    first, *rest = textwrap.wrap(name, LENGTH) or [""]
    return [first, _short(" ".join(rest))] if rest else [first]


def _height(text: Sequence[str]) -> float:
    return 2 + LINE * len(text)


def _short(name: str) -> str:
    """The name, cut to fit beside a chart."""
    return name if len(name) <= LENGTH else name[: LENGTH - 1].rstrip() + "…"
