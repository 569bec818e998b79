"""An estimate as text: a line per step, totals, notes, and what cannot fit."""

from sparring.workflows.estimating.estimate import Estimate, Row
from sparring.workflows.estimating.sizes import ANY, Collection
from sparring.workflows.quantities import between, duration, size

WAITS = 4
"""Number of step functions that are named for the time in which the GPUs wait."""


def estimate_text(expected: Estimate) -> str:
    """Format the time, money, memory and disk of every step to run, and the whole."""
    site, low, high = expected.site, *expected.between
    priced, cuda = site.cluster.price_per_hour is not None, site.cuda
    optional = (True, priced, True, cuda, True)
    prices = dict.fromkeys(_money(expected, seconds) for seconds in (low, high))
    total = [between(low, high), " to ".join(prices)]
    total += [size(expected.memory), size(expected.gpu_memory), size(expected.kept)]
    head = ["time", "money", "memory", "on a GPU", "disk"]
    cells = [head, *(_cells(expected, row) for row in expected.rows), total]
    labels = ["step", *(row.node.label for row in expected.rows), "in all"]
    rows = [
        [label, *(cell for cell, shown in zip(row, optional, strict=True) if shown)]
        for label, row in zip(labels, cells, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    free = f" (there are {size(site.disk)})" if site.disk != float("inf") else ""
    machines = f", {site.nodes} machines" if site.nodes > 1 else ""
    lines += ["", *map(_collection_text, expected.collections[:1])]
    lines += [f"disk that must be free: {size(expected.disk)}{free}"]
    lines += [f"memory: {size(expected.memory)} of {size(site.memory)}{machines}"]
    if site.cluster.address is not None:
        lines.append(f"head: {size(expected.head_memory)} of memory; {size(expected.driver)} pass the driver")
    if cuda:
        idle = ", ".join(f"{name} {duration(seconds)}" for name, seconds in list(expected.gpu_idle.items())[:WAITS])
        lines.append(f"GPUs compute {expected.gpu_share:.0%} of the time; longest without them: {idle}")
        lines.append(f"memory of a process on a GPU: {size(expected.gpu_memory)} of {size(site.gpu_memory)}")
    if expected.unknown:
        lines.append(f"not estimated, and not in the sums: {', '.join(expected.unknown)}")
    if expected.requests:
        count, asking = sum(expected.requests.values()), ", ".join(expected.requests)
        lines.append(f"not in the sums: the time and price of at most {count:,} requests to addresses: {asking}")
    lines += [f"note: {note}" for note in expected.notes]
    lines += [f"slow: {warning}" for warning in expected.warnings]
    lines += [f"{'then' if number else 'breaks first'}: {text}" for number, text in enumerate(expected.problems)]
    return "\n".join(lines)


def _collection_text(data: Collection) -> str:
    counts = sorted(data.queries.items(), key=lambda count: count[0] == ANY)
    rest = f"of each {'other ' if len(counts) > 1 else ''}split"
    queries = ", ".join(f"{count:,} {rest if split == ANY else split}" for split, count in counts)
    return f"{'' if data.exact else 'about '}{data.documents:,} documents{f'; queries: {queries}' if queries else ''}"


def _money(expected: Estimate, seconds: float) -> str:
    return f"{expected.money(seconds) or 0.0:,.2f}"


def _cells(expected: Estimate, row: Row) -> list[str]:
    if row.work is None:
        return ["?"] * 5
    on_gpu = size(row.gpu_memory) if row.gpu_memory else "-"
    money, kept = _money(expected, row.seconds), size(row.work.kept or 0.0)
    return ["?" if row.work.requests else duration(row.seconds), money, size(row.memory), on_gpu, kept]
