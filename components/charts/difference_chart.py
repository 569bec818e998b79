"""Differences with their intervals, one below the other, beside a line where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparring.components.charts.axes import ticks

WIDTH, SIDES, TOP, ROW = 440, 18, 8, 38


@dataclass(frozen=True)
class Difference:
    """What differs, by how much, and half of its 95 % interval (None where it is not known)."""

    name: str
    value: float
    half: float | None
    clear: bool


def svg(title: str, differences: Sequence[Difference]) -> str:
    """The chart as SVG: clear differences in a colour each way, others pale."""
    ends = [one.value + side * (one.half or 0.0) for one in differences for side in (-1, 1)]
    marks = ticks(min(0.0, *ends), max(0.0, *ends))
    bottom = TOP + ROW * len(differences)

    def x(value: float) -> float:
        return SIDES + (WIDTH - 2 * SIDES) * (value - marks[0]) / (marks[-1] - marks[0])

    parts = []
    for mark in marks:
        kind = "lead" if mark == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{x(mark):.1f} {TOP}V{bottom}"/>')
        sign = f"{mark:+g}".replace("-", "\u2212") if mark else "0"
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{bottom + 17}" text-anchor="middle">{sign}</text>')
    for number, one in enumerate(differences):
        y = TOP + ROW * number + 27
        kind = ("c0" if one.value > 0 else "c1") if one.clear else "part"
        half = "" if one.half is None else f" ± {one.half:.3f}"
        parts.append(f'<text class="tick halo" x="{SIDES}" y="{y - 12}">{escape(one.name)}</text>')
        if one.half is not None:
            low, high = x(one.value - one.half), x(one.value + one.half)
            parts.append(f'<path class="whisker {kind}" d="M{low:.1f} {y}H{high:.1f}"/>')
        parts.append(
            f'<circle class="dot {kind}" cx="{x(one.value):.1f}" cy="{y}" r="4.5">'
            f"<title>{escape(one.name)}: {one.value:+.3f}{half}</title></circle>"
        )
    said = "; ".join(f"{one.name} {one.value:+.3f}" for one in differences)
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {bottom + 24}" role="img" '
    return f'{head}aria-label="{escape(title)}: {escape(said)}">{"".join(parts)}</svg>'
