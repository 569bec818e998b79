"""Checks that what a command reads was made, and was not dropped since."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from sparring.components.config import Damaged, UserError
from sparring.components.files import check_whole, read_json
from sparring.workflows.program import program
from sparring.workflows.store import s3
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import RECORD, Store


class NotMade(UserError):
    """A file that a run makes is missing."""

    def __init__(self, message: str, label: str | None = None, name: str = "", *, again: bool = True) -> None:
        super().__init__(message, code="not-made")
        self.label, self.name, self.again = label, name, again
        """Label of the step that makes the file, name of its artifact, and whether the file was made before."""

    def as_in(self, nodes: Iterable[Step]) -> Self:
        """Return this error with the label that a graph has for the step, which another experiment may have made."""
        label = next((node.label for node in nodes if node.name == self.name), self.label)
        return type(self)(str(self).replace(repr(self.label), repr(label)), label, self.name, again=self.again)

    def told(self, run: str | None = None, *, finished: bool = False) -> str:
        """Return the problem with the command that solves it: `run`, if needed with the step to stop at.

        The step is named if `run` alone would do nothing, as for a file that was made before or in a `finished` run.
        """
        until = f" --until {self.label!r}" if self.label and (self.again or finished) else ""
        return f"{self}: {run or f'{program()} run CONFIG'}{until}"


def remade(error: UserError) -> UserError:
    """Turn an error about a damaged file of a finished step into NotMade, which says what to remove.

    Any other error is returned unchanged.
    """
    place = error.path.resolve() if isinstance(error, Damaged) and error.path is not None else None
    if place is not None and place.name == RECORD:
        artifact_place = s3.url(place.parent) if s3.is_cached(place) else place.parent
        return UserError(f"{error}; remove {artifact_place}, and repeat the command")
    artifact = (
        next((folder for folder in place.parents if (folder / RECORD).is_file()), None) if place is not None else None
    )
    if artifact is None:
        return error
    label = read_json(artifact / RECORD)["label"]
    return NotMade(f"{error}; remove {artifact} and make it again", label, artifact.name)


def damage(places: Iterable[Path]) -> Damaged | None:
    """Describe the first damaged file in some folders, or return None if all files are whole."""
    for place in places:
        try:
            check_whole(place)
        except Damaged as error:
            return error
    return None


def finished(store: Store, node: Step) -> dict[str, Any]:
    """Return a step's record. NotMade if the step is not done."""
    record = store.record(node)
    if record is None:
        raise NotMade(f"the step {node.label!r} is not done; run it first", node.label, node.name, again=False)
    return record


def unchanged(store: Store, nodes: Iterable[Step]) -> None:
    """Raise NotMade if a file of a finished artifact is not as its step left it, before it is handed to anybody."""
    for node in nodes:
        for name, difference in (store.changes(node) or {}).items():
            place = store.location(node)
            raise NotMade(f"{place}/{name} {difference}; remove {place} and make it again", node.label, node.name)


def not_dropped(store: Store, node: Step) -> None:
    """Raise NotMade if files of a finished step were dropped."""
    if not store.is_complete(node):
        raise NotMade(f"files of the step {node.label!r} were dropped; make them again", node.label, node.name)
