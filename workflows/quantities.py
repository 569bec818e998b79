"""Sizes and times for people."""

CLOSE = 1.25
"""Two times are shown as one if the longer is less than this many times the shorter."""


def size(count: float) -> str:
    """Format a number of bytes: `512 B`, `1.5 kB`, `12.3 MB`, `512 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}" if count < 100 * scale else f"{count / scale:,.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Format a time: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`, `3.1 days`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole / 86400:,.1f} days"


def about(seconds: float) -> str:
    """Format an approximate time: `about 40 s`, `about 12 min`, `about 3 h 20 min`."""
    if seconds < 90:
        return f"about {max(1, round(seconds / 5) * 5)} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    if seconds < 48 * 3600:
        tens = round(seconds / 600)
        return f"about {tens // 6} h {tens % 6 * 10:02} min"
    return f"about {seconds / 86400:.1f} days"


def between(low: float, high: float) -> str:
    """Format a range of times: `4 to 11 min`, `40 s to 3 min`. If both are close, it is one: `about 7 min`.

    >>> between(230, 660)
    '4 to 11 min'
    >>> between(40, 200)
    '40 s to 3 min'
    >>> between(400, 440)
    'about 7 min'
    """
    least, most = (about(seconds).removeprefix("about ") for seconds in (low, high))
    if high < CLOSE * low or least == most:
        return about((low + high) / 2)
    count, _, unit = least.partition(" ")
    return f"{count if most.split()[1:] == [unit] else least} to {most}"
