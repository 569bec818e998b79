"""Scatter plots: a measure against one key of a tuning."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from sparring.components.charts.axes import LEFT, WIDTH, height_scale, ticks, x_axis, y_axis
from sparring.components.charts.axes import svg as wrapped

RIGHT = 16
"""Margin at the right edge, which has no names of lines."""
PLACE = 52
"""The most that a value takes which is not on the scale."""


@dataclass(frozen=True)
class Dot:
    """A trial: the value of the key, and of the measure."""

    at: Any
    value: float
    kind: Literal["best", "whole", "part"]
    """`part` for a trial that was stopped: its value is that of an earlier system."""
    about: str


@dataclass(frozen=True)
class Scatter:
    """A measure against a key of the config."""

    measure: str
    key: str
    dots: Sequence[Dot]
    log: bool = False
    """Whether the axis of the key is logarithmic."""


def svg(chart: Scatter) -> str:
    """The chart as SVG. The page colours the dots by the classes `c0` (whole), `c1` (best) and `part`."""
    marks = ticks(min(dot.value for dot in chart.dots), max(dot.value for dot in chart.dots))
    y = height_scale(marks)
    x, x_marks = _axis(chart)
    parts = [*y_axis(marks, RIGHT), *x_axis(x_marks, chart.key, RIGHT)]
    for dot in sorted(chart.dots, key=lambda dot: dot.kind == "best"):  # the best is drawn last, above the others
        radius, colour = {"best": (6.0, "c1"), "whole": (4.5, "c0"), "part": (3.5, "part")}[dot.kind]
        title = f"{dot.about}: {dot.value:.3f} at {_text(dot.at)}"
        parts.append(
            f'<circle class="dot {colour}" cx="{x(dot.at):.1f}" cy="{y(dot.value):.1f}" r="{radius}">'
            f"<title>{escape(title)}</title></circle>"
        )
    values = "; ".join(f"{_text(dot.at)}: {dot.value:.3f}" for dot in chart.dots)
    return wrapped(f"{chart.measure} against {chart.key}: {values}", parts)


def _axis(chart: Scatter) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """The x coordinate of a value of the key, and the marks of the axis: numbers are to scale, and other values have
    each a place of its own left of them. Where numbers are few all values are evenly spaced."""
    first, width = LEFT + 18, WIDTH - LEFT - RIGHT - 36
    values = [dot.at for dot in chart.dots]
    numbers = {float(value) for value in values if _is_placed(value, log=chart.log)}
    others = list(dict.fromkeys(_text(value) for value in values if not _is_placed(value, log=chart.log)))
    is_scale = len(numbers) > max(1, len(others))
    texts = others if is_scale else list(dict.fromkeys(map(_text, values)))
    place = min(PLACE, width / 2 / max(1, len(texts))) if is_scale else width / len(texts)
    places = {text: first + place * (number + 0.5) for number, text in enumerate(texts)}
    marks = [(at, _short(text)) for text, at in places.items()]
    if not is_scale:
        return lambda value: places[_text(value)], marks
    scale: Callable[[float], float] = math.log if chart.log else float
    low, high = scale(min(numbers)), scale(max(numbers))
    begin = first + place * len(texts)

    def x(value: Any) -> float:
        if not _is_placed(value, log=chart.log):
            return places[_text(value)]
        return begin + (first + width - begin) * (scale(value) - low) / (high - low)

    if chart.log:
        marked = _decades(min(numbers), max(numbers))
    else:
        marked = [tick for tick in ticks(low, high) if low - 1e-12 <= tick <= high + 1e-12]
    return x, [*marks, *((x(value), f"{value:.6g}") for value in marked)]


def _is_placed(value: Any, *, log: bool) -> bool:
    """Whether a value has a place on a scale."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and (value > 0 or not log)


def _decades(low: float, high: float) -> list[float]:
    """Two to six round numbers between two others, evenly spread on a logarithmic axis; else these two."""
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
    return text if len(text) <= 12 else text[:11] + "…"
