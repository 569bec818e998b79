"""Scales and axes that charts share. A chart is inline SVG: the page gives its colours, and it needs no script.

Charts are not drawn with a plotting library because these follow the page into dark mode, print and any width, and
screen readers can read them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

WIDTH, HEIGHT = 440, 290
LEFT, TOP, BOTTOM = 44, 14, 40


def ticks(low: float, high: float) -> list[float]:
    """Four to seven round values that span low to high."""
    if high - low < 1e-6:
        low, high = low - 0.05, high + 0.05
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def height_scale(marks: Sequence[float]) -> Callable[[float], float]:
    """The y coordinate of a value on an axis with these marks."""
    return lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - marks[0]) / (marks[-1] - marks[0])


def y_axis(marks: Sequence[float], right: int) -> list[str]:
    """A grid line for each mark, with its value; `right` is the margin at the right edge."""
    y = height_scale(marks)
    digits = max(2, -math.floor(math.log10(marks[1] - marks[0])))
    parts = []
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - right}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:.{digits}f}</text>'
        )
    return parts


def x_axis(marks: Iterable[tuple[float, str]], title: str, right: int) -> list[str]:
    """The texts at these x coordinates below the chart, and the axis title below them."""
    parts = [
        f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(text)}</text>'
        for x, text in marks
    ]
    middle = (LEFT + WIDTH - right) / 2
    return [
        *parts,
        f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(title)}</text>',
    ]


def svg(label: str, parts: Sequence[str]) -> str:
    """A chart of these parts; `label` is read out by screen readers."""
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return f"{head}{''.join(parts)}</svg>"
