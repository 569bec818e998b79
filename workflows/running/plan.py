"""The plan of a run as text: every step with its state and its place."""

from components.config import listing
from workflows.store.dag import Step
from workflows.store.planner import states
from workflows.store.store import Store


def plan_text(wanted: list[Step], store: Store) -> str:
    """A table of the steps that lead to the wanted ones, inputs first, and how many are to run."""
    rows = [("label", "step", "state", "where")]
    for node, state in states(wanted, store):
        record = store.record(node)
        if state == "done" and record is not None and record["dropped"]:
            state_text = f"done, {listing(record['dropped'])} dropped"
        else:
            state_text = state
        rows.append((node.label, node.function.__name__, state_text, node.name))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
    waiting = sum(row[2] in ("to do", "partial") for row in rows)
    return "\n".join([*lines, "", f"{len(rows) - 1} steps, {waiting} to run"])
