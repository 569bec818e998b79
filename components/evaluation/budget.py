"""Limits on what a system may need, and the systems that exceed them."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

FILE = "latency.json"
"""The file with what a system needs, or with the reason why nothing was measured."""

GUARD = "guard_loss"
"""Key of the limit on what a system's retrievers lose on another collection."""

NEEDS = {"p95_ms": "p95", "memory_gb": "memory", "disk_gb": "disk"}
"""Words for the limits, by key. The unit is the key's ending."""


def exceeded(needs: Mapping[str, float] | None, limits: Mapping[str, float]) -> list[Json]:
    """List the limits that a system exceeds: `limit`, the system's `value` and the `most` that is allowed.

    `needs` has the measured values by the limits' keys. If it is None, nothing was measured. Then the system exceeds
    every limit, because nobody knows whether it keeps them, and each `value` is None.

    >>> exceeded({"p95_ms": 120.0, "memory_gb": 1.5}, {"p95_ms": 50.0, "memory_gb": 4.0})
    [{'limit': 'p95_ms', 'value': 120.0, 'most': 50.0}]
    >>> exceeded(None, {"p95_ms": 50.0})
    [{'limit': 'p95_ms', 'value': None, 'most': 50.0}]
    """
    values = {limit: None if needs is None else needs[limit] for limit in limits}
    return [
        {"limit": limit, "value": value, "most": limits[limit]}
        for limit, value in values.items()
        if value is None or value > limits[limit]
    ]


def nearest(beyond: Mapping[str, list[Json]]) -> str | None:
    """Return the system that exceeds its worst limit by the smallest factor. None if no system was measured.

    `beyond` has the exceeded limits of each system. The first of equal systems is returned.

    >>> near = [{"limit": "p95_ms", "value": 60.0, "most": 50.0}]
    >>> far = [{"limit": "p95_ms", "value": 90.0, "most": 50.0}]
    >>> nearest({"far": far, "near": near, "unknown": exceeded(None, {"p95_ms": 50.0})})
    'near'
    """
    factors = {
        name: max(entry["value"] / entry["most"] for entry in limits)
        for name, limits in beyond.items()
        if all(entry["value"] is not None for entry in limits)
    }
    return min(factors, key=factors.__getitem__, default=None)


def excess(entry: Json) -> str:
    """Say how a limit is exceeded.

    >>> excess({"limit": "p95_ms", "value": 120.4, "most": 50.0})
    'p95 120 ms > 50 ms'
    >>> excess({"limit": "disk_gb", "value": 12.34, "most": 10})
    'disk 12.3 GB > 10 GB'
    >>> excess({"limit": "guard_loss", "value": 0.0312, "most": 0.02})
    'loses 0.0312 on the guard > 0.02'
    """
    if entry["limit"] == GUARD:
        return f"loses {_above(entry['value'], entry['most'])} on the guard > {entry['most']:g}"
    unit = {"ms": "ms", "gb": "GB"}[entry["limit"].rpartition("_")[2]]
    value = entry["value"]
    if value is None:
        return f"{NEEDS[entry['limit']]} not measured"
    return f"{NEEDS[entry['limit']]} {_above(value, entry['most'])} {unit} > {entry['most']:g} {unit}"


def _above(value: float, most: float) -> str:
    """Write a value with as few digits, from three, as show that it is larger than the limit.

    >>> _above(120.4, 50), _above(50.02, 50), _above(1234.5, 50)
    ('120', '50.02', '1234')
    """
    digits = next(digits for digits in range(3, 18) if float(f"{value:.{digits}g}") > most)
    return f"{value:.0f}" if value >= 1000 and digits <= 4 else f"{value:.{digits}g}"
