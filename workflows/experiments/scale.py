"""An experiment at small scale: the same steps and rows, from other data and models.

`--set scale=small` makes the changes of the key `small`, `key.path: value` as `--set` has them, before those of other
`--set` values. What the file leaves out, by null or by a shorter list, is left out at small scale too, whatever `small`
says of it: a base's changes then fit the files that are based on it. Experiments that an experiment builds on are at
small scale too.
"""

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sparring.components.config import UserError
from sparring.components.yaml_files import assign, override

SCALE, SMALL = "scale", "small"
"""Keys that recipes do not see: the scale, and the changes at small scale, or in one line why there are none."""
KEYS = (SCALE, SMALL)
BUILDS_ON = ("experiments", "experiment")
"""Keys of recipes that name the experiments they consist of: whatever these change at small scale is enough."""


class NoSmallScale(UserError):
    """An experiment that has no small scale."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {SCALE}: there is no small one: {reason}", key=SCALE, code="no-small-scale")
        self.reason = reason


_scale: ContextVar[str | None] = ContextVar("scale", default=None)
"""The scale of the experiment that is being built."""


def rescaled(tree: dict[str, Any], assignments: list[str], where: str) -> dict[str, Any]:
    """Return a tree of keys, changed to small scale if that is requested, and then by the assignments. UserError for
    another scale, or if there is no small one."""
    of_scale = [assignment for assignment in assignments if assignment.partition("=")[0] == SCALE]
    scale = override({SCALE: _scale.get(), **tree}, of_scale)[SCALE]
    if scale is None:
        return override(tree, assignments)
    if scale != SMALL:
        raise UserError(f"{where}: {SCALE}: {scale!r}; accepted: {SMALL}", key=SCALE, code="unknown-scale")
    if (reason := why_not(tree)) is not None:
        raise NoSmallScale(where, reason)
    changes = tree.get(SMALL) or {}
    if not isinstance(changes, dict):
        raise UserError(
            f"{where}: {SMALL}: {changes!r}; accepted: `key.path: value`, or a line that says why not",
            key=SMALL,
        )
    tree = copy.deepcopy({key: value for key, value in tree.items() if key != SMALL})
    for path, value in changes.items():
        if not _is_left_out(tree, path):
            assign(tree, path, copy.deepcopy(value), where=f"{where}: {SMALL}: {path}")
    return {**override(tree, assignments), SCALE: scale}


def why_not(tree: dict[str, Any]) -> str | None:
    """Say why there is no small scale. None if there is one."""
    small = tree.get(SMALL)
    if isinstance(small, str):
        return small
    if small is None and not tree.keys() & {*BUILDS_ON, SCALE}:
        return f"the file has no key `{SMALL}`"
    return None


def _is_left_out(tree: dict[str, Any], path: str) -> bool:
    """Check whether a tree has null at a key path or on the way to it, or a list that is too short."""
    node: Any = tree
    for key in path.split("."):
        if isinstance(node, list) and re.fullmatch("[0-9]{1,9}", key):
            node = node[int(key)] if int(key) < len(node) else None
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return False
        if node is None:
            return True
    return False


@contextmanager
def at_scale_of(tree: dict[str, Any]) -> Iterator[None]:
    """Read the experiments that a tree of keys builds on at its scale."""
    token = _scale.set(tree.get(SCALE) or _scale.get())
    try:
        yield
    finally:
        _scale.reset(token)
