"""Draw charts: marks, texts, axes and a legend on a canvas, which becomes inline SVG.

A plotting library would draw finished pictures. Inline SVG takes its colours from the page, so that a chart follows it
into dark mode, print and any width, and screen readers can read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Literal

WIDTH = 440
"""Width of a chart, in pixels of its view box."""
LETTER = 6.5
"""Approximate width of a letter."""

Role = Literal["chosen", "baseline", "plain"]
"""Role of a system in a chart: the verdict's system, the one that it is compared with, or another."""
COLOURS: dict[Role, str] = {"chosen": "c0", "baseline": "c1", "plain": "part"}
Scale = Callable[[float], float]
"""Function from a value to its coordinate."""


def shortened(name: str, most: int) -> str:
    """Cut a name to so many characters.

    >>> shortened("retriever 1", 8)
    'retriev…'
    """
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def ticks(low: float, high: float) -> list[float]:
    """Choose four to seven round values that span low to high."""
    if high - low < 1e-6:
        low, high = low - 0.05, high + 0.05
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def scale(marks: Sequence[float], start: float, end: float) -> Scale:
    """Map the first mark to the coordinate `start`, the last one to `end`, and values between them linearly."""
    return lambda value: start + (end - start) * (value - marks[0]) / (marks[-1] - marks[0])


class Canvas:
    """Elements of a chart around and on a plot area, between `start` and `end`, `top` and `bottom`."""

    def __init__(self, *, start: float, end: float, top: float, height: float = 0.0, width: int = WIDTH) -> None:
        """Create a canvas of a width, with a plot area between x coordinates, of a height below the top."""
        self.width, self.start, self.end, self.top, self.bottom = width, start, end, top, top + height
        self._elements: list[str] = []

    def path(self, kind: str, description: str, title: str = "") -> None:
        """Draw a path."""
        self._add("path", f'class="{kind}" d="{description}"', "", title)

    def line(self, kind: str, points: Iterable[tuple[float, float]], title: str = "") -> None:
        """Draw a line through points."""
        self.path(kind, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), title)

    def dot(self, kind: str, x: float, y: float, radius: float, title: str = "") -> None:
        """Draw a filled circle."""
        self._add("circle", f'class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"', "", title)

    def bar(self, kind: str, x: float, y: float, width: float, height: float, title: str = "") -> None:
        """Draw a filled rectangle."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._add("rect", f'class="bar {kind}" {place}', "", title)

    def text(self, x: float, y: float, text: str, kind: str = "tick", anchor: str = "start", title: str = "") -> None:
        """Write a text, whose anchor (start, middle or end) stands at x."""
        attributes = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._add("text", attributes, escape(text), title)

    def _add(self, tag: str, attributes: str, text: str, title: str) -> None:
        """Add an element; its title is shown under the pointer."""
        inside = text + (f"<title>{escape(title)}</title>" if title else "")
        self._elements.append(f"<{tag} {attributes}>{inside}</{tag}>" if inside else f"<{tag} {attributes}/>")

    def y_axis(self, marks: Sequence[float], text: Callable[[float], str] | None = None) -> Scale:
        """Draw a horizontal grid line with its value at each mark; return the scale.

        If `text` is None, values have as many decimals as the marks need, at least 2.
        """
        y = scale(marks, self.bottom, self.top)
        digits = next(
            d for d in range(2, 12) if all(math.isclose(round(mark, d), mark, abs_tol=1e-9) for mark in marks)
        )
        for mark in marks:
            self.path("grid", f"M{self.start} {y(mark):.1f}H{self.end}")
            self.text(self.start - 6, y(mark) + 4, text(mark) if text else f"{mark:.{digits}f}", anchor="end")
        return y

    def x_axis(self, marks: Iterable[tuple[float, str]], title: str = "") -> None:
        """Write texts at x coordinates below the plot area, and the title of the axis below them."""
        for x, text in marks:
            self.text(x, self.bottom + 18, text, anchor="middle")
        if title:
            self.text((self.start + self.end) / 2, self.bottom + 34, title, anchor="middle")

    def x_grid(self, marks: Sequence[float], text: Callable[[float], str]) -> Scale:
        """Draw a vertical grid line with its value at each mark; return the scale."""
        x = scale(marks, self.start, self.end)
        for mark in marks:
            self.path("grid", f"M{x(mark):.1f} {self.top}V{self.bottom}")
        self.x_axis((x(mark), text(mark)) for mark in marks)
        return x

    def legend(self, entries: Iterable[tuple[str, str]], *, bars: bool = False) -> float:
        """Write names next to samples of their lines or bars at the top edge, as many in a row as fit.

        Returns the y coordinate below the last row.
        """
        x, y = self.start, self.top + 8
        for name, kind in entries:
            width = 22 + LETTER * len(name) + 12
            if x > self.start and x + width > self.width:
                x, y = self.start, y + 16
            if bars:
                self.bar(kind, x, y - 8, 11, 11)
            else:
                self.path(f"line {kind}", f"M{x:.1f} {y - 4:.1f}h16")
            self.text(x + 22, y, name, "tick" if bars else f"name {kind}")
            x += width
        return y + 12

    def svg(self, label: str, *, below: float = 0.0, kind: str = "") -> str:
        """Write the chart with a margin below the plot area; screen readers read the label out."""
        shape = f'class="{f"chart {kind}".rstrip()}" viewBox="0 0 {self.width} {self.bottom + below:g}"'
        return f'<svg {shape} role="img" aria-label="{escape(label)}">{"".join(self._elements)}</svg>'
