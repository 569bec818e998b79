"""The plan of a run as text: every step with its state and its place."""

from collections.abc import Sequence
from typing import Any

from sparring.components.config import listing
from sparring.workflows.store.dag import Step
from sparring.workflows.store.planner import states
from sparring.workflows.store.store import Store


def plan_text(wanted: list[Step], store: Store) -> str:
    """Tabulate the steps that lead to the wanted steps, inputs first, and count those that are to run. The phase is
    `-` if the recipe names none.
    """
    rows = [("label", "phase", "step", "state", "where")]
    for node, state in states(wanted, store):
        record = store.record(node)
        if state == "done" and record is not None and record["dropped"]:
            state_text = f"done, {listing(record['dropped'])} dropped"
        else:
            state_text = state
        rows.append((node.label, node.phase or "-", node.function.__name__, state_text, node.name))
    waiting = sum(row[3] in ("to do", "partial") for row in rows)
    return "\n".join([*_columns(rows), "", f"{len(rows) - 1} steps, {waiting} to run"])


def defaults_text(defaults: Sequence[tuple[str, Any, str]]) -> str:
    """Tabulate what a config left open: key, value, reason."""
    return "\n".join(_columns([(key, str(value), reason) for key, value, reason in defaults]))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the cells of all rows in columns. The last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
