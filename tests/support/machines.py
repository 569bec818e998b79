"""The machine of a test, with another profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparring.workflows.distributed.machine import Machine


def changed(machine: Machine, keys: Mapping[str, Any]) -> Machine:
    """Return a machine whose profile has other values for some keys."""
    return replace(machine, cluster=machine.cluster.model_copy(update=keys))
