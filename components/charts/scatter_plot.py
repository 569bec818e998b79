"""A measure against one key of a tuning, as small inline SVG in the manner of `plots`."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from components.plots import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, ticks

RIGHT = 16
"""There are no names of lines at the right edge."""


@dataclass(frozen=True)
class Dot:
    """A trial: what it set the key to, and what was measured."""

    at: Any
    value: float
    kind: Literal["best", "whole", "part"]
    """`part` for one that was stopped: what an earlier system measured."""
    about: str


@dataclass(frozen=True)
class Scatter:
    """A measure against a key."""

    measure: str
    key: str
    dots: Sequence[Dot]
    log: bool = False
    """Even steps of the axis are equal factors."""


def svg(chart: Scatter) -> str:
    """The chart. Classes `c0` (whole), `c1` (best) and `level` (part) are coloured by the page."""
    heights = ticks(min(dot.value for dot in chart.dots), max(dot.value for dot in chart.dots))
    x, marks = _axis(chart)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - heights[0]) / (heights[-1] - heights[0])

    digits = max(2, -math.floor(math.log10(heights[1] - heights[0])))
    parts = []
    for tick in heights:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.{digits}f}</text>'
        )
    for at, text in marks:
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(text)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(chart.key)}</text>')
    for dot in sorted(chart.dots, key=lambda dot: dot.kind == "best"):  # nothing lies over the best
        radius, colour = {"best": (6.0, "c1"), "whole": (4.5, "c0"), "part": (3.5, "part")}[dot.kind]
        says = f"{dot.about}: {dot.value:.3f} at {_text(dot.at)}"
        parts.append(
            f'<circle class="dot {colour}" cx="{x(dot.at):.1f}" cy="{y(dot.value):.1f}" r="{radius}">'
            f"<title>{escape(says)}</title></circle>"
        )
    said = "; ".join(f"{_text(dot.at)}: {dot.value:.3f}" for dot in chart.dots)
    label = escape(f"{chart.measure} against {chart.key}: {said}")
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _axis(chart: Scatter) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Where a value of the key stands, and the marks below: numbers in proportion, other values side by side."""
    first, width = LEFT + 18, WIDTH - LEFT - RIGHT - 36
    values = [dot.at for dot in chart.dots]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        texts = list(dict.fromkeys(_text(value) for value in values))
        places = {text: first + width * (at + 0.5) / len(texts) for at, text in enumerate(texts)}
        return lambda value: places[_text(value)], [(at, _short(text)) for text, at in places.items()]
    log = chart.log and min(numbers) > 0
    scale: Callable[[float], float] = math.log if log else float
    low, high = scale(min(numbers)), scale(max(numbers))

    def x(value: float) -> float:
        return first + width * (scale(value) - low) / (high - low)

    if log:
        marked = _decades(min(numbers), max(numbers))
    else:
        marked = [tick for tick in ticks(low, high) if low - 1e-12 <= tick <= high + 1e-12]
    return x, [(x(value), f"{value:.3g}") for value in marked]


def _decades(low: float, high: float) -> list[float]:
    """Round numbers between two, at most six, evenly spread on a log scale; the two where there is none between."""
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [
            digit * 10.0**power
            for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
            for digit in digits
        ]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if 2 <= len(found) <= 6:
            return found
    return [low, high]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str, length: int = 12) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
