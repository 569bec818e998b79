"""Draw scatter plots: quality against latency, a measure against a key of a tuning, and maps of an embedding space."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparring.components.charts.plot import COLOURS, LETTER, WIDTH, Canvas, Role, shortened, ticks

CATEGORY = 52
"""Maximum width of a value that is not a number, next to numbers."""
LONGEST, BOLD = 34, 1.15
"""Characters of a name next to a dot, and how much wider bold letters are."""
SIDE = 260
"""Width and height of a map."""


@dataclass(frozen=True)
class Timed:
    """A system with the time of a query, in milliseconds, and its value."""

    name: str
    milliseconds: float
    value: float
    role: Role = "plain"


def frontier(systems: Sequence[Timed]) -> list[Timed]:
    """Return the systems that no faster system equals, the fastest first.

    >>> [timed.name for timed in frontier([Timed("a", 2, 0.5), Timed("b", 1, 0.4), Timed("c", 3, 0.5)])]
    ['b', 'a']
    """
    best: list[Timed] = []
    for timed in sorted(systems, key=lambda timed: (timed.milliseconds, -timed.value)):
        if not best or timed.value > best[-1].value:
            best.append(timed)
    return best


def trade_off(
    measure: str, systems: Sequence[Timed], *, axis: str = "milliseconds for a query", limit: float | None = None
) -> str:
    """Draw quality against latency on a logarithmic axis, and a line through the frontier.

    `limit` draws the latency that a budget allows. Names stand at the frontier's dots, at the chosen system and at its
    baseline, as far as there is room.
    """
    canvas = Canvas(start=44, end=WIDTH - 16, top=14 if limit is None else 30, height=236)
    y = canvas.y_axis(ticks(min(timed.value for timed in systems), max(timed.value for timed in systems)))
    times = [timed.milliseconds for timed in systems]
    shown = times if limit is None else [*times, limit]
    low, high = math.log(min(shown) / 1.3), math.log(max(shown) * 1.3)

    def x(milliseconds: float) -> float:
        return canvas.start + (canvas.end - canvas.start) * (math.log(milliseconds) - low) / (high - low)

    marks = _decades(math.exp(low), math.exp(high))
    canvas.x_axis([(x(mark), f"{mark:,g}") for mark in marks], f"{axis} (logarithmic)")
    best = frontier(systems)
    canvas.line("level", [(x(timed.milliseconds), y(timed.value)) for timed in best])
    if limit is not None:
        canvas.line("limit", [(x(limit), canvas.top), (x(limit), canvas.bottom)])
        _write_limit(canvas, f"budget {limit:g} ms", x(limit))
    placed = [(x(timed.milliseconds) - 6, y(timed.value) - 6, 12.0) for timed in systems]
    for timed in sorted(systems, key=lambda timed: timed.role != "plain"):  # marked systems are drawn last
        radius = 4.5 if timed.role == "plain" else 6.5
        title = f"{timed.name}: {timed.value:.3f}, {timed.milliseconds:.3g} ms"
        canvas.dot(f"dot {COLOURS[timed.role]}", x(timed.milliseconds), y(timed.value), radius, title)
    named = [timed for timed in systems if timed.role != "plain"] + [
        timed for timed in reversed(best) if timed.role == "plain"
    ]
    for timed in named:
        _write_name(canvas, timed, x(timed.milliseconds), y(timed.value), placed)
    values = "; ".join(f"{timed.name} {timed.value:.3f} at {timed.milliseconds:.3g} ms" for timed in systems)
    allowed = "" if limit is None else f"; the budget allows {limit:g} ms"
    return canvas.svg(f"{measure} against {axis}: {values}{allowed}", below=40)


def _write_limit(canvas: Canvas, text: str, x: float) -> None:
    """Write a limit above its line, inside the canvas."""
    half = LETTER * len(text) / 2
    canvas.text(min(max(x, half), canvas.width - half), canvas.top - 4, text, anchor="middle")


def _write_name(canvas: Canvas, timed: Timed, x: float, y: float, placed: list[tuple[float, float, float]]) -> None:
    """Write a system's name at the first free place around its dot, if there is one, and add it to `placed`.

    `placed` holds the left edge, the top and the width of what is drawn, each about a line high.
    """
    name = shortened(timed.name, LONGEST)
    width = LETTER * len(name) * (1.0 if timed.role == "plain" else BOLD)
    before, centred = x - 9 - width, x - width / 2
    for edge, top in ((x + 9, y - 7), (before, y - 7), (centred, y - 22), (centred, y + 8), (before, y - 22)):
        inside = canvas.start <= edge and edge + width <= canvas.width and canvas.top - 8 <= top <= canvas.bottom - 12
        in_line = [(start, span) for start, height, span in placed if abs(top - height) < 12]
        covered = any(edge < start + span and start < edge + width for start, span in in_line)
        if inside and not covered:
            placed.append((edge, top, width))
            kind = "tick" if timed.role == "plain" else f"name {COLOURS[timed.role]}"
            canvas.text(edge, top + 11, name, f"{kind} halo", title=timed.name)
            return


@dataclass(frozen=True)
class Dot:
    """A trial with its value of the key (`setting`) and of the measure."""

    setting: Any
    value: float
    kind: Literal["best", "whole", "part"]
    """`part` for a trial that was stopped: its value is that of an earlier system."""
    name: str


@dataclass(frozen=True)
class Scatter:
    """A measure against a key of the config."""

    measure: str
    key: str
    dots: Sequence[Dot]
    log: bool = False
    """True for a logarithmic horizontal axis."""


def svg(chart: Scatter) -> str:
    """Draw the chart. The page colours the dots by the classes `c0` (whole), `c1` (best) and `part`."""
    canvas = Canvas(start=44, end=WIDTH - 16, top=14, height=236)
    marks = ticks(min(dot.value for dot in chart.dots), max(dot.value for dot in chart.dots))
    y = canvas.y_axis(marks)
    x, x_marks = _axis(chart, canvas.start + 18, canvas.end - 18)
    canvas.x_axis(x_marks, chart.key)
    for dot in sorted(chart.dots, key=lambda dot: dot.kind == "best"):  # the best dot is drawn last, above the others
        radius, kind = {"best": (6.0, "c1"), "whole": (4.5, "c0"), "part": (3.5, "part")}[dot.kind]
        title = f"{dot.name}: {dot.value:.3f} at {_text(dot.setting)}"
        canvas.dot(f"dot {kind}", x(dot.setting), y(dot.value), radius, title)
    values = "; ".join(f"{_text(dot.setting)}: {dot.value:.3f}" for dot in chart.dots)
    return canvas.svg(f"{chart.measure} against {chart.key}: {values}", below=40)


def space_map(name: str, queries: Sequence[Sequence[float]], documents: Sequence[Sequence[float]]) -> str:
    """Draw points between 0 and 1: documents in one colour, queries in another."""
    canvas = Canvas(start=0, end=SIDE, top=0, height=SIDE, width=SIDE)
    for kind, points in (("c1", documents), ("c0", queries)):
        for point in points:
            x, y = (8 + (SIDE - 16) * value for value in point)
            canvas.dot(f"spot {kind}", x, y, 2.2)
    return canvas.svg(f"map of {len(queries)} queries and {len(documents)} documents: {name}", kind="map")


def _axis(chart: Scatter, start: float, end: float) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Place the values of the key between two x coordinates; return their scale, and the marks of the axis.

    Numbers are to scale. Other values stand side by side left of the numbers. If there are few numbers, all values are
    evenly spaced.
    """
    values = [dot.setting for dot in chart.dots]
    numbers = {float(value) for value in values if _is_numeric(value, log=chart.log)}
    categories = list(dict.fromkeys(_text(value) for value in values if not _is_numeric(value, log=chart.log)))
    is_scale = len(numbers) > max(1, len(categories))
    texts = categories if is_scale else list(dict.fromkeys(map(_text, values)))
    width = min(CATEGORY, (end - start) / 2 / max(1, len(texts))) if is_scale else (end - start) / len(texts)
    places = {text: start + width * (number + 0.5) for number, text in enumerate(texts)}
    marks = [(x, _short(text)) for text, x in places.items()]
    if not is_scale:
        return lambda value: places[_text(value)], marks
    transform: Callable[[float], float] = math.log if chart.log else float
    low, high = transform(min(numbers)), transform(max(numbers))
    origin = start + width * len(texts)

    def x(value: Any) -> float:
        if not _is_numeric(value, log=chart.log):
            return places[_text(value)]
        return origin + (end - origin) * (transform(value) - low) / (high - low)

    if chart.log:
        shown = _decades(min(numbers), max(numbers))
    else:
        shown = [tick for tick in ticks(low, high) if low - 1e-12 <= tick <= high + 1e-12]
    return x, [*marks, *((x(value), f"{value:.6g}") for value in shown)]


def _is_numeric(value: Any, *, log: bool) -> bool:
    """Tell whether a value has a place on a scale."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and (value > 0 or not log)


def _decades(low: float, high: float) -> list[float]:
    """Choose two to six round numbers that are evenly spread between two others on a logarithmic axis, or the two."""
    for digits in ((1, 2, 5), (1, 3), (1,)):
        marks = [
            digit * 10.0**power
            for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
            for digit in digits
        ]
        marks = [value for value in marks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if 2 <= len(marks) <= 6:
            return marks
    return [low, high]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str) -> str:
    return shortened(text, 12)
