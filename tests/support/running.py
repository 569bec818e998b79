"""Running what is pending, for tests of the graph."""

from __future__ import annotations

from typing import Any

from sparring.workflows.running.executor import execute
from sparring.workflows.store.dag import Step
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store


def run(wanted: list[Step], store: Store, machine: Any = None) -> list[str]:
    """Run the pending steps; the labels of those that ran."""
    return [node.label for node in pending(wanted, store) if execute(node, store, machine, on_wait=print)]
