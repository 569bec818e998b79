"""Bars that are cut into shares of a whole, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, TOP, ROW, BAR = 440, 26, 38, 14
LETTER = 6.6
"""About how wide a letter is."""


def svg(title: str, parts: Sequence[str], bars: Mapping[str, Sequence[float]]) -> str:
    """A bar for each name, of one share for each of `parts`; the last part is drawn in a colour of its own."""
    shades = [f"s{number}" for number in range(len(parts) - 1)] + ["c1"]
    drawn, across = [], 0.0
    for part, shade in zip(parts, shades, strict=True):
        drawn.append(f'<rect class="bar {shade}" x="{across:.0f}" y="2" width="11" height="11" rx="3"/>')
        drawn.append(f'<text class="tick" x="{across + 16:.0f}" y="12">{escape(part)}</text>')
        across += 16 + LETTER * len(part) + 14
    for number, (name, shares) in enumerate(bars.items()):
        down, at = TOP + number * ROW, 0.0
        drawn.append(f'<text class="tick" x="0" y="{down + 12}">{escape(name)}</text>')
        for part, shade, share in zip(parts, shades, shares, strict=True):
            drawn.append(
                f'<rect class="bar {shade}" x="{WIDTH * at:.1f}" y="{down + 17}" width="{WIDTH * share:.1f}" '
                f'height="{BAR}"><title>{escape(name)}, {escape(part)}: {share:.0%}</title></rect>'
            )
            at += share
    said = "; ".join(
        f"{name}: {', '.join(f'{part} {share:.0%}' for part, share in zip(parts, shares, strict=True))}"
        for name, shares in bars.items()
    )
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {TOP + ROW * len(bars)}" role="img" '
    return f'{head}aria-label="{escape(title)}: {escape(said)}">{"".join(drawn)}</svg>'
