"""Plots of a retriever's embedding space: histograms as lines, and maps of queries and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from sparring.components.charts.axes import ticks
from sparring.components.evaluation.embedding_space import COSINES, RATIOS

WIDTH, SIDES, TOP = 440, 16, 4
NAME, HILL = 20, 26
"""Heights of a histogram's name and of its highest bin."""
MIN_SHARE = 0.001
"""The axis ends at the outermost bins that have at least this share in some histogram."""
SIDE = 260
DISTRIBUTIONS = (
    ("nearest", "cosine of a query and the document ranked first", COSINES),
    ("ratio", "query to query, as a share of query to document", RATIOS),
)
"""The histograms of an analysis: key, title and range (Moiseev et al., 2023, Figures 5 and 6)."""


def distributions(title: str, curves: Mapping[str, Sequence[float]], span: tuple[float, float]) -> str:
    """Histograms of the same span one below the other, each under its name, without empty ends."""
    bins = len(next(iter(curves.values())))
    seen = [at for curve in curves.values() for at, share in enumerate(curve) if share >= MIN_SHARE]
    first, last = (min(seen), max(seen)) if seen else (0, bins - 1)
    highest = max(max(curve) for curve in curves.values()) or 1.0
    width = (span[1] - span[0]) / bins
    marks = ticks(span[0] + first * width, span[0] + (last + 1) * width)
    bottom = TOP + len(curves) * (NAME + HILL)

    def x(value: float) -> float:
        return SIDES + (WIDTH - 2 * SIDES) * (value - marks[0]) / (marks[-1] - marks[0])

    parts = []
    for mark in marks:
        parts.append(f'<path class="grid" d="M{x(mark):.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{bottom + 18}" text-anchor="middle">{mark:g}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        ground = TOP + (number + 1) * (NAME + HILL)
        line = "L".join(
            f"{x(span[0] + (at + 0.5) * width):.1f} {ground - HILL * curve[at] / highest:.1f}"
            for at in range(first, last + 1)
        )
        parts.append(f'<path class="line c0" d="M{line}"><title>{escape(name)}</title></path>')
        parts.append(f'<text class="tick" x="{SIDES}" y="{ground - HILL - 4}">{escape(name)}</text>')
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {bottom + 26}" role="img" aria-label="{escape(title)}: '
    return f'{head}{escape(", ".join(curves))}">{"".join(parts)}</svg>'


def scatter(name: str, queries: Sequence[Sequence[float]], documents: Sequence[Sequence[float]]) -> str:
    """A map of points between 0 and 1: documents in one colour, queries in another."""
    parts = []
    for colour, points in (("c1", documents), ("c0", queries)):
        for place in points:
            across, down = (8 + (SIDE - 16) * value for value in place)
            parts.append(f'<circle class="spot {colour}" cx="{across:.1f}" cy="{down:.1f}" r="2.2"/>')
    return (
        f'<svg class="chart map" viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="map of {len(queries)} queries and '
        f'{len(documents)} documents: {escape(name)}">{"".join(parts)}</svg>'
    )
