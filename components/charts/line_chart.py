"""Draw line charts: a measure over the rounds of a training, or over another whole-number axis."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparring.components.charts.plot import WIDTH, Canvas, Scale, scale, shortened, ticks
from sparring.components.evaluation.measures import mean_and_deviation

LENGTH, LINE = 19, 12.0
"""Characters of a name that fit into the right margin, and height of a line of text."""
LEVELS = 5
"""Maximum number of horizontal lines."""
_AXIS_TITLES = {"round": "round (0: after the warm-up)"}


@dataclass(frozen=True)
class Point:
    """Mean value at a round and, for more than one seed, its standard deviation."""

    round: int
    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Chart:
    """A measure over the rounds, or over another axis. Systems without rounds are horizontal lines: `levels`."""

    measure: str
    curves: dict[str, list[Point]] = field(default_factory=dict)
    levels: dict[str, float] = field(default_factory=dict)
    axis: str = "round"


def charts(rows: Sequence[dict[str, Any]]) -> list[Chart]:
    """Build a chart for each measure in the result rows of a collection.

    There is none unless some system was measured in two rounds: a curve needs two points.
    """
    rounds = {row["system"]: row["round"] for row in rows}
    curve_of = _curves({system: number for system, number in rounds.items() if number is not None})
    points: dict[str, set[int]] = {}
    for system, curve in curve_of.items():
        points.setdefault(curve, set()).add(rounds[system])
    if all(len(numbers) < 2 for numbers in points.values()):
        return []
    return [
        _chart(measure, [row for row in rows if row["measure"] == measure], curve_of)
        for measure in dict.fromkeys(row["measure"] for row in rows)
    ]


def _curves(rounds: dict[str, int]) -> dict[str, str]:
    """Name the curve of each system: `retriever 2` and `warm retriever` are on `retriever`.

    `ranker 1 over retriever 1` is on `ranker`, or on `ranker over retriever` if a round has more than one ranker.
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
        seeds = [row for row in rows if row["system"] == system]
        mean, deviation = mean_and_deviation(row["value"] for row in seeds)
        if system in curve_of:
            chart.curves.setdefault(curve_of[system], []).append(Point(seeds[0]["round"], mean, deviation))
        else:
            chart.levels[system] = mean
        if system == "warm retriever":  # what training must improve on
            chart.levels[system] = mean
    for points in chart.curves.values():
        points.sort(key=lambda point: point.round)
    return replace(chart, levels=_distinct(chart.levels))


def _distinct(levels: dict[str, float]) -> dict[str, float]:
    """Keep few enough horizontal lines to tell apart: single systems, and the best of the combined ones."""
    if len(levels) <= LEVELS:
        return levels
    single = [name for name in levels if not re.search(r" (\+|over|by|with) ", name)]
    combined = [name for name in levels if name not in single]
    kept = {*single[: LEVELS - 1], *([max(combined, key=lambda name: levels[name])] if combined else [])}
    return {name: value for name, value in levels.items() if name in kept}


def svg(chart: Chart) -> str:
    """Draw the chart. The page colours the curves by the classes `c0` to `c4`, the horizontal lines by `level`."""
    points = [point for curve in chart.curves.values() for point in curve]
    last = max(1, *(point.round for point in points))
    ends = [point.value + side * (point.deviation or 0) for point in points for side in (-1, 1)]
    values = [*ends, *chart.levels.values()]

    canvas = Canvas(start=44, end=WIDTH - 124, top=14, height=236)
    y = canvas.y_axis(ticks(min(values), max(values)))
    x = scale((0, last), canvas.start + 10, canvas.end - 10)
    rounds = range(0, last + 1, max(1, math.ceil(last / 10)))
    canvas.x_axis([(x(number), str(number)) for number in rounds], _AXIS_TITLES.get(chart.axis, chart.axis))
    labels = []
    for name, value in chart.levels.items():
        canvas.path("level", f"M{canvas.start} {y(value):.1f}H{canvas.end}", f"{name}: {value:.3f}")
        labels.append((y(value), name, "level"))
    for number, (name, curve) in enumerate(chart.curves.items()):
        _draw(canvas, name, curve, f"c{number % 5}", x, y, chart.axis)
        labels.append((y(curve[-1].value), name, f"c{number % 5}"))
    _write_labels(canvas, labels)
    means = [f"{name} {', '.join(f'{p.value:.3f}' for p in curve)}" for name, curve in chart.curves.items()]
    return canvas.svg(f"{chart.measure} by {chart.axis}: {'; '.join(means)}", below=40)


def _draw(canvas: Canvas, name: str, curve: Sequence[Point], colour: str, x: Scale, y: Scale, axis: str) -> None:
    """Draw a line through the points, a dot for each, and a whisker for each deviation."""
    canvas.line(f"line {colour}", [(x(point.round), y(point.value)) for point in curve])
    for point in curve:
        title = f"{name}, {axis} {point.round}: {point.value:.3f}"
        if point.deviation is not None:
            title += f", standard deviation {point.deviation:.3f}"
            low, high = y(point.value - point.deviation), y(point.value + point.deviation)
            canvas.path(f"whisker {colour}", f"M{x(point.round):.1f} {low:.1f}V{high:.1f}")
        canvas.dot(f"dot {colour}", x(point.round), y(point.value), 3.5, title)


def _write_labels(canvas: Canvas, labels: list[tuple[float, str, str]]) -> None:
    """Write names at the right end of their lines, moved apart where they would overlap.

    Long names take two lines of text if there is room for all.
    """
    labels = sorted(labels)
    texts = [_lines(name) for _, name, _ in labels]
    if sum(map(_height, texts)) > canvas.bottom - canvas.top:
        texts = [[_short(name)] for _, name, _ in labels]
    tops = list[float]()
    for (end, *_), text in zip(labels, texts, strict=True):
        top = end - _height(text) / 2
        tops.append(max(top, tops[-1] + _height(texts[len(tops) - 1])) if tops else top)
    limit = canvas.bottom + 4 + LINE / 2
    for number in reversed(range(len(tops))):
        tops[number] = limit = min(tops[number], limit - _height(texts[number]))
    edge = canvas.end
    for top, text, (end, name, colour) in zip(tops, texts, labels, strict=True):
        canvas.path(f"lead {colour}", f"M{edge + 2} {end:.1f}L{edge + 10} {top + _height(text) / 2:.1f}")
        title = name if " ".join(text) != name else ""
        for number, line in enumerate(text):
            canvas.text(edge + 13, top + number * LINE + LINE / 2 + 5, line, f"name {colour}", title=title)


def _lines(name: str) -> list[str]:
    """Break a name into at most two lines."""
    first, *rest = textwrap.wrap(name, LENGTH) or [""]
    return [first, _short(" ".join(rest))] if rest else [first]


def _height(text: Sequence[str]) -> float:
    return 2 + LINE * len(text)


def _short(name: str) -> str:
    """Cut a name to fit next to a chart."""
    return shortened(name, LENGTH)
