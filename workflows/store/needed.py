"""What a command reads must have been made, and not been dropped since."""

from typing import Any

from components.config import UserError
from workflows.program import program
from workflows.store.dag import Step
from workflows.store.store import Store


def finished(store: Store, node: Step) -> dict[str, Any]:
    """A step's record; UserError where the step is not done."""
    record = store.record(node)
    if record is None:
        raise UserError(f"the step {node.label!r} is not done; run it first: {program()} run CONFIG")
    return record


def not_dropped(store: Store, node: Step) -> None:
    """UserError where files of a finished step were dropped."""
    if not store.is_complete(node):
        again = f"{program()} run CONFIG --until {node.label!r}"
        raise UserError(f"files of the step {node.label!r} were dropped; make them again: {again}")
