"""The run time: when each step ran, how it spent its time, and the longest chain of steps."""

from collections.abc import Collection, Sequence
from typing import Any

from sparring.components.timing import KINDS
from sparring.workflows.quantities import duration
from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.metrics import time_of
from sparring.workflows.report.page import WORDS

UNITS = ("documents", "pairs", "groups", "sentences", "updates", "expansions", "queries", "rows")
"""Keys of a step's summary that count its work, the most informative first."""
SLOWEST = 3
"""Slow steps that a run names at its end."""
AT_ONCE = 0.1
"""Least overlap in seconds of steps that ran at once. One clock measures the end of a step, another the start of the
next one."""


def timeline(steps: Finished, executed: Collection[str]) -> tuple[list[Json], float]:
    """Return finished steps in order of their start, and the total time without the pauses between them."""
    ordered = sorted(steps, key=lambda pair: pair[1]["started"])
    starts, total = course([(record["started"], record["seconds"]) for _, record in ordered])
    line = [
        {
            "label": node.label,
            "part": node.part,
            "models": node.description.models,
            "name": node.name,
            "upstream": record["upstream"],
            "at": start,
            "work": work(record["summary"]),
            **time_of(record),
            "executed": node.fingerprint in executed,
        }
        for start, (node, record) in zip(starts, ordered, strict=True)
    ]
    return line, total


def course(spans: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    """Return when each step began, and the total time, both without the times in which no step ran.

    A span is a start and a duration in seconds. Spans ascend.

    >>> course([(0, 2), (10, 3)])
    ([0.0, 2.0], 5.0)
    """
    starts, busy, reached = [], 0.0, float("-inf")
    for began, seconds in spans:
        starts.append(busy - max(0.0, reached - began))
        busy += max(0.0, began + seconds - max(began, reached))
        reached = max(reached, began + seconds)
    return starts, busy


def longest_chain(steps: Sequence[Json]) -> tuple[float, list[str]]:
    """The critical path: seconds and labels of the steps that need one another and together take longest.

    A step is {name, label, seconds, upstream}, where `upstream` names the steps that it needs; inputs come first.
    """
    chains: dict[str, tuple[float, list[str]]] = {}
    for step in steps:
        seconds, labels = max((chains[name] for name in step["upstream"] if name in chains), default=(0.0, []))
        chains[step["name"]] = seconds + step["seconds"], [*labels, step["label"]]
    return max(chains.values(), default=(0.0, []))


def work(summary: dict[str, Any]) -> tuple[str, int] | None:
    """Return the unit that a step counted, with its count, from its summary."""
    for unit in UNITS:
        count = summary.get(unit)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return unit, count
    return None


def share_of_roofline(steps: Sequence[Json]) -> float | None:
    """Return the time that the models' matrix products need on this processor, as a share of the time that the models
    took. None if no model ran."""
    at_work = sum(step["model_seconds"] for step in steps)
    return sum(step["roofline_seconds"] for step in steps) / at_work if at_work else None


def efficiency(steps: Sequence[Json]) -> list[Json]:
    """Steps, time, work and bytes on disk of every part of a run, and of the whole (Zhang et al., 2022, Table 8).

    A step is {part, seconds, time, model_seconds, roofline_seconds, work, bytes}, with `money` if its profile has a
    price. The parts stand in the order of their first steps.
    """
    total = sum(step["seconds"] for step in steps) or 1.0
    parts = dict.fromkeys(step["part"] for step in steps)
    rows = [_row(part, [step for step in steps if step["part"] == part], total) for part in parts]
    return [*rows, {**_row("total", list(steps), total), "counts": []}]


def _row(name: str, steps: list[Json], total: float) -> Json:
    counts: dict[str, tuple[int, float]] = {}
    for unit, count, seconds in ((*step["work"], step["seconds"]) for step in steps if step["work"]):
        done, spent = counts.get(unit, (0, 0.0))
        counts[unit] = (done + count, spent + seconds)
    seconds = sum(step["seconds"] for step in steps)
    money = [step["money"] for step in steps if step.get("money") is not None]
    return {
        "part": name,
        "steps": len(steps),
        "seconds": seconds,
        "share": seconds / total,
        "money": sum(money) if money else None,
        "time": {kind: sum(step["time"].get(kind, 0.0) for step in steps) for kind in KINDS},
        "of_floor": share_of_roofline(steps),
        "counts": [{"unit": unit, "count": count, "seconds": spent} for unit, (count, spent) in counts.items()],
        "bytes": sum(step["bytes"] for step in steps),
    }


def where(steps: Sequence[Json], seconds: float, waited: float = 0.0) -> str:
    """Describe in plain text where the time of the steps that ran just now went. Empty if none ran.

    `seconds` is the time of the whole run, `waited` the part of it spent waiting for other drivers. The steps are those
    of a timeline. Steps that ran at once each count whole: the shares are then of their sum.
    """
    steps = [step for step in steps if step["executed"]]
    if not steps:
        return ""
    together, (_, busy) = sum(s["seconds"] for s in steps), course([(s["at"], s["seconds"]) for s in steps])
    between = max(0.0, seconds - busy)
    whole, for_others = together + between, min(waited, between)
    spent = {kind: sum(s["time"][kind] for s in steps) for kind in KINDS}
    spent["waiting"] += for_others
    shares = [f"{WORDS[kind]} {time / whole:.0%}" for kind, time in spent.items()]
    lines = [f"time: {duration(seconds)}: {', '.join(shares)}, between steps {(between - for_others) / whole:.0%}"]
    if together > busy + AT_ONCE:
        longest, labels = longest_chain(steps)
        lines += [
            f"      steps ran at once and each counts whole, so these are shares of {duration(whole)}",
            f"      longest chain of steps that need one another, {duration(longest)}: {' > '.join(labels)}",
        ]
    if len(steps) > 1:
        slowest = sorted(steps, key=lambda step: -step["seconds"])[:SLOWEST]
        named = [f"{step['label']} {duration(step['seconds'])}" for step in slowest]
        before = " (with the time before it was resumed)" if slowest[0]["seconds"] > seconds + 1 else ""
        lines.append(f"      slowest{before}: {', '.join(named)}")
    if floors := _floors(steps):
        lines.append(f"      share of this processor's peak speed that models reached: {floors}")
    return "\n".join(lines)


def _floors(steps: Sequence[Json]) -> str:
    """Distance of each kind of model work from the roofline."""
    kinds = dict.fromkeys(step["models"] for step in steps if step["models"])
    shares = {kind: share_of_roofline([step for step in steps if step["models"] == kind]) for kind in kinds}
    return ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share is not None)
