"""What a command reads must have been made, and not been dropped since."""

import json
from typing import Any

from components.config import Damaged, UserError
from workflows.program import program
from workflows.store.dag import Step
from workflows.store.store import RECORD, Store


class NotMade(UserError):
    """A file that a run makes is not there."""

    def __init__(self, what: str, until: str = "") -> None:
        super().__init__(what)
        self.until = until
        """Words behind the command that makes it."""

    def told(self, run: str | None = None) -> str:
        """What is wrong, and the command: `run` and what it needs besides."""
        return f"{self}: {run or f'{program()} run CONFIG'}{self.until}"


def remade(error: UserError) -> UserError:
    """NotMade, which says what to remove, for a damaged file of a finished step; any other error as it is."""
    place = error.path.resolve() if isinstance(error, Damaged) and error.path is not None else None
    artifact = next((one for one in place.parents if (one / RECORD).is_file()), None) if place is not None else None
    if artifact is None:
        return error
    label = json.loads((artifact / RECORD).read_text())["label"]
    return NotMade(f"{error}; remove {artifact} and make it again", f" --until {label!r}")


def finished(store: Store, node: Step) -> dict[str, Any]:
    """A step's record; NotMade where the step is not done."""
    record = store.record(node)
    if record is None:
        raise NotMade(f"the step {node.label!r} is not done; run it first")
    return record


def not_dropped(store: Store, node: Step) -> None:
    """NotMade where files of a finished step were dropped."""
    if not store.is_complete(node):
        raise NotMade(f"files of the step {node.label!r} were dropped; make them again", f" --until {node.label!r}")
