"""An estimate as text: a line for each step that costs something, totals, and what cannot fit."""

from __future__ import annotations

from sparring.workflows.estimating.estimate import Estimate, Row
from sparring.workflows.quantities import between, duration, size
from sparring.workflows.store.cost import ANY

BUSY = 0.2
"""A machine is busy where other programs take more than this share of its processors."""


def estimate_text(found: Estimate) -> str:
    """Every step to run with time, money, memory and disk; the whole; notes."""
    priced = found.site.cluster.price_per_hour is not None
    cuda = found.site.cuda
    head = [
        "step",
        "time",
        *(["money"] if priced else []),
        "memory of a process",
        "of a machine",
        *(["on a GPU"] if cuda else []),
        "disk",
        "objects",
    ]
    rows = [head, *(_cells(found, row, priced=priced) for row in found.waiting)]
    rows.append(
        [
            "in all",
            between(*found.between),
            *([_money(found)] if priced else []),
            size(max((row.memory for row in found.waiting), default=0.0)),
            size(found.memory),
            *([size(found.gpu_memory)] if cuda else []),
            size(found.kept),
            f"{found.objects:,.0f}",
        ]
    )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    about = "" if found.exact else "about "
    counts = sorted(found.queries.items(), key=lambda one: one[0] == ANY)
    other = f"of each {'other ' if len(counts) > 1 else ''}split"
    queries = ", ".join(f"{count:,} {other if split == ANY else split}" for split, count in counts)
    lines += [
        "",
        f"{about}{found.documents:,} documents" + (f"; queries: {queries}" if queries else ""),
        f"disk that must be free: {size(found.disk)}"
        + (f" (there are {size(found.site.disk)})" if found.site.disk != float("inf") else ""),
        f"memory of a machine: {size(found.memory)} of {size(found.site.memory)}, {found.site.nodes} machines"
        if found.site.nodes > 1
        else f"memory: {size(found.memory)} of {size(found.site.memory)}",
    ]
    if cuda:
        lines.append(f"memory of a process on a GPU: {size(found.gpu_memory)} of {size(found.site.gpu_memory)}")
    if found.bucket is not None:
        lines.append(
            f"{found.bucket}: {size(found.kept)} in {found.objects:,.0f} objects are written to it; transfers to and "
            "from S3 and its price are not in the sums"
        )
    if found.rates.others > BUSY:
        lines.append(
            f"other programs took {found.rates.others:.0%} of all cores meanwhile; without them it would be about "
            f"{duration(found.alone().seconds)}"
        )
    if found.unknown:
        lines.append(f"not estimated, and not in the sums: {', '.join(found.unknown)}")
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"slow: {warning}" for warning in found.warnings]
    lines += [f"{'breaks first' if at == 0 else 'then'}: {problem}" for at, problem in enumerate(found.problems)]
    return "\n".join(lines)


def _money(found: Estimate) -> str:
    """What the whole run costs."""
    least, most = (f"{found.money(seconds):,.2f}" for seconds in found.between)
    return least if least == most else f"{least} to {most}"


def _cells(found: Estimate, row: Row, *, priced: bool) -> list[str]:
    cost, cuda = row.cost, found.site.cuda
    if cost is None:
        return [row.node.label, "?", *(["?"] if priced else []), "?", "?", *(["?"] if cuda else []), "?", "?"]
    return [
        row.node.label,
        duration(row.seconds),
        *([f"{found.money(row.seconds):,.2f}"] if priced else []),
        size(row.memory),
        size(row.node_memory),
        *([size(row.gpu_memory) if row.gpu_memory else "-"] if cuda else []),
        size(cost.kept),
        f"{1 + cost.objects:,.0f}",
    ]
