"""Draw charts that have a row for each name: values and differences with intervals, shares, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.components.charts.plot import COLOURS, WIDTH, Canvas, Role, shortened, ticks

ROW = 38
"""Height of a row of values, differences or shares."""
LONGEST = 58
"""Characters of a name above a bar."""
NUMBER = 42
"""Width of a value behind its bar."""
NAME, HILL = 20, 26
"""Height of a histogram's name, and of its highest bin."""
MIN_SHARE = 0.001
"""Share that a histogram's outermost bins must have. The axis ends at them."""


@dataclass(frozen=True)
class Bar:
    """A value with the ends of its 95 % interval; None if the interval is unknown."""

    name: str
    value: float
    low: float | None
    high: float | None
    role: Role = "plain"


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Draw a bar with its interval for each value, from 0. The chosen system and its baseline have colours."""
    ends = [end for row in rows for end in (row.value, row.low, row.high) if end is not None]
    canvas = Canvas(start=0, end=WIDTH - NUMBER, top=2, height=ROW * len(rows))
    x = canvas.x_grid(ticks(min(0.0, *ends), max(0.0, *ends)), "{:g}".format)
    for number, row in enumerate(rows):
        y = canvas.top + ROW * number + 18
        interval = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
        kind = "tick halo" if row.role == "plain" else "tick halo ink"
        canvas.text(canvas.start, y - 4, shortened(row.name, LONGEST), kind, title=row.name)
        start, end = sorted((x(0.0), x(row.value)))
        canvas.bar(COLOURS[row.role], start, y, end - start, 13, f"{row.name}: {row.value:.3f}{interval}")
        if row.low is not None and row.high is not None:
            canvas.path("whisker ink", f"M{x(row.low):.1f} {y + 6.5}H{x(row.high):.1f}")
            for limit in (row.low, row.high):
                canvas.path("whisker ink", f"M{x(limit):.1f} {y + 3}v7")
        canvas.text(max(end, x(row.high or 0.0)) + 6, y + 11, f"{row.value:.3f}", "tick halo")
    values = "; ".join(f"{row.name} {row.value:.3f}" for row in rows)
    return canvas.svg(f"{title}: {values}", below=24)


@dataclass(frozen=True)
class Difference:
    """A difference with half the width of its 95 % interval; None if the interval is unknown."""

    name: str
    value: float
    half: float | None
    clear: bool


def differences(title: str, rows: Sequence[Difference]) -> str:
    """Draw differences around a line at 0: clear ones in a colour for each direction, unclear ones pale."""
    ends = [row.value + side * (row.half or 0.0) for row in rows for side in (-1, 1)]
    canvas = Canvas(start=18, end=WIDTH - 18, top=8, height=ROW * len(rows))
    x = canvas.x_grid(
        ticks(min(0.0, *ends), max(0.0, *ends)), lambda mark: f"{mark:+g}".replace("-", "\u2212") if mark else "0"
    )
    canvas.path("lead", f"M{x(0.0):.1f} {canvas.top}V{canvas.bottom}")
    for number, row in enumerate(rows):
        y = canvas.top + ROW * number + 27
        kind = ("c0" if row.value > 0 else "c1") if row.clear else "part"
        canvas.text(canvas.start, y - 12, row.name, "tick halo")
        if row.half is not None:
            canvas.path(f"whisker {kind}", f"M{x(row.value - row.half):.1f} {y}H{x(row.value + row.half):.1f}")
        half = "" if row.half is None else f" ± {row.half:.3f}"
        canvas.dot(f"dot {kind}", x(row.value), y, 4.5, f"{row.name}: {row.value:+.3f}{half}")
    values = "; ".join(f"{row.name} {row.value:+.3f}" for row in rows)
    return canvas.svg(f"{title}: {values}", below=24)


def shares(title: str, parts: Sequence[str], bars: Mapping[str, Sequence[float]]) -> str:
    """Draw a bar for each name, cut into a share for each part; the last part has a contrasting colour."""
    kinds = [f"s{number}" for number in range(len(parts) - 1)] + ["c1"]
    canvas = Canvas(start=0, end=WIDTH, top=2)
    canvas.bottom = canvas.legend(zip(parts, kinds, strict=True), bars=True) + 4
    for name, row in bars.items():
        canvas.text(0, canvas.bottom + 12, name)
        x = 0.0
        for part, kind, share in zip(parts, kinds, row, strict=True):
            canvas.bar(kind, x, canvas.bottom + 17, WIDTH * share, 14, f"{name}, {part}: {share:.0%}")
            x += WIDTH * share
        canvas.bottom += ROW
    values = "; ".join(
        f"{name}: {', '.join(f'{part} {share:.0%}' for part, share in zip(parts, row, strict=True))}"
        for name, row in bars.items()
    )
    return canvas.svg(f"{title}: {values}")


def distributions(title: str, histograms: Mapping[str, Sequence[float]], span: tuple[float, float]) -> str:
    """Draw histograms of the same span below each other, as lines without their empty ends."""
    bins = len(next(iter(histograms.values())))
    filled = [i for histogram in histograms.values() for i, share in enumerate(histogram) if share >= MIN_SHARE]
    first, last = (min(filled), max(filled)) if filled else (0, bins - 1)
    highest = max(max(histogram) for histogram in histograms.values()) or 1.0
    width = (span[1] - span[0]) / bins
    canvas = Canvas(start=16, end=WIDTH - 16, top=4, height=len(histograms) * (NAME + HILL))
    x = canvas.x_grid(ticks(span[0] + first * width, span[0] + (last + 1) * width), "{:g}".format)
    for row, (name, histogram) in enumerate(histograms.items(), 1):
        ground = canvas.top + row * (NAME + HILL)
        centres = [span[0] + (number + 0.5) * width for number in range(first, last + 1)]
        heights = [HILL * share / highest for share in histogram[first : last + 1]]
        line = [(x(centre), ground - height) for centre, height in zip(centres, heights, strict=True)]
        canvas.line("line c0", line, name)
        canvas.text(canvas.start, ground - HILL - 4, name)
    return canvas.svg(f"{title}: {', '.join(histograms)}", below=26)
