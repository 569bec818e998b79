"""Successive halving over the systems that trials reach, in the words of Ray Tune's ASHA."""

from typing import Any


def halving(systems: int, factor: int) -> dict[str, Any]:
    """Tune's arguments for an ASHA that compares trials after each system but the last.

    It compares where a trial's time is a power of the factor, so a trial's `time_of` a system is one; after the last
    one its time is over.
    """
    return {"time_attr": "time", "max_t": 0.75 * time_of(max(2, systems), factor), "reduction_factor": factor}


def time_of(system: int, factor: int) -> int:
    """What Tune's schedulers take for the time at which a trial reaches its n-th system, counted from 1."""
    return int(factor ** (system - 1))
