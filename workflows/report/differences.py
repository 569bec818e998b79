"""Differences between two runs, and where they began: the configs, the steps, and the artifacts of the same steps."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparring.workflows.report.runs import Run
from sparring.workflows.store.comparison import DIFFERS, files_apart
from sparring.workflows.store.dag import Step, canonical, graph

SHOWN = 6
"""Number of steps and files that are named. The rest are counted."""

Change = tuple[str, Any, Any]
"""A key with its values in the first and in the second run."""


class Absent:
    """A key that a config does not have."""

    def __repr__(self) -> str:
        return "not set"


ABSENT = Absent()


@dataclass(frozen=True)
class Differences:
    """Differences between two runs, in the order of the second run's steps."""

    config: list[Change]
    same: list[Step]
    """Steps with the same identity."""
    began: list[tuple[Step, list[Change]]]
    """Steps that differ although all steps before them are the same, with the inputs that differ."""
    followed: list[Step]
    """Steps that differ because others do."""
    removed: list[Step]
    """Steps of the first run whose labels the second does not have."""
    apart: list[tuple[Step, list[str]]]
    """Steps with the same identity whose artifacts differ, in the order of the graph, with the files that do."""
    shared: int
    """Number of the same steps that are finished and whose artifact both runs share."""
    compared: int
    """Number of artifacts of the same steps that lie in two places and were compared."""


def differences(first: Run, second: Run) -> Differences:
    """Compare two runs. Artifacts in the same place are the same without reading them."""
    before, after = graph(first.experiment.wanted), graph(second.experiment.wanted)
    fingerprints, labels = {node.fingerprint for node in before}, {node.label: node for node in before}
    same = [node for node in after if node.fingerprint in fingerprints]
    different = [node for node in after if node.fingerprint not in fingerprints]
    began = [node for node in different if all(source.fingerprint in fingerprints for source in node.upstream)]
    now = {node.label for node in after}
    finished = [node for node in same if first.store.is_done(node) and second.store.is_done(node)]
    pairs = [node for node in finished if first.store.location(node) != second.store.location(node)]
    apart = [(node, files) for node in pairs if (files := _files_apart(node, first, second))]
    return Differences(
        config=changes(_config(first), _config(second)),
        same=same,
        began=[(node, _inputs(labels.get(node.label), node)) for node in began],
        followed=[node for node in different if node not in began],
        removed=[node for node in before if node.label not in now],
        apart=apart,
        shared=len(finished) - len(pairs),
        compared=len(pairs),
    )


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Change]:
    """Return the keys whose values differ, by their paths as `--set` takes them.

    >>> changes({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3, "c": 2}, "e": True})
    [('a.b', 1, 3), ('d', [1], not set), ('e', not set, True)]
    """
    before, after = dict(_flat(first)), dict(_flat(second))
    keys = dict.fromkeys([*before, *after])
    return [
        (key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in keys
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    ]


def text_of(value: Any) -> str:
    """Write a config's value on one line."""
    return value if isinstance(value, str) else repr(value) if isinstance(value, Absent) else json.dumps(value)


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a tree by their paths. A list without keys in it counts as a value."""
    if isinstance(tree, Mapping) and tree:
        items = list(tree.items())
    elif isinstance(tree, list) and any(isinstance(element, Mapping) for element in tree):
        items = list(enumerate(tree))
    else:
        yield path, tree
        return
    for key, value in items:
        yield from _flat(value, f"{path}.{key}" if path else str(key))


def _config(run: Run) -> dict[str, Any]:
    return dict(run.experiment.config.model_dump(mode="json"))


def _inputs(before: Step | None, after: Step) -> list[Change]:
    """List the inputs of a step that differ from those of the step with the same label."""
    return [] if before is None else changes(_identity(before), _identity(after))


def _identity(node: Step) -> dict[str, Any]:
    function = {"function": node.function.__name__, "version": node.description.version, "code": dict(node.code)}
    return {**function, **canonical(node.inputs)}


def _files_apart(node: Step, first: Run, second: Run) -> list[str]:
    """Return the files that differ, or that one artifact lacks although nothing was dropped."""
    for run in (first, second):
        run.store.fetch([node])
    dropped = any((run.store.record(node) or {})["dropped"] for run in (first, second))
    differences = files_apart(first.store.path(node), second.store.path(node))
    return sorted(name for name, difference in differences.items() if difference == DIFFERS or not dropped)


def told(difference: Differences, first: str, second: str) -> str:
    """Describe the differences in plain text."""
    lines = [f"{first} against {second}", ""]
    if difference.config:
        alone = {
            first: [key for key, _, after in difference.config if after is ABSENT],
            second: [key for key, before, _ in difference.config if before is ABSENT],
        }
        many = {name: keys for name, keys in alone.items() if len(keys) > SHOWN}  # as of another recipe
        shown = [change for change in difference.config if not any(change[0] in keys for keys in many.values())]
        shown.sort(key=lambda change: change[0] != "recipe")
        wide = min(48, max((len(key) for key, _, _ in shown), default=0))
        lines += ["The configs differ in", *_told(shown, wide)]
        lines += [f"  only in {name}: {_by_part(keys)}" for name, keys in many.items()] + [""]
    else:
        lines += ["The configs are the same.", ""]
    different = len(difference.began) + len(difference.followed)
    lines.append(
        f"Of {len(difference.same) + different} steps of {second}, {_are(len(difference.same))} the same"
        + (f"; {first} has {len(difference.removed)} without a counterpart." if difference.removed else ".")
    )
    if difference.began:
        lines.append("It began at")
        for node, inputs in difference.began[:SHOWN]:
            lines.append(f"  {node.label}" + ("" if inputs else f"   (only in {second})"))
            lines += _told(inputs, 0, "    ")
        lines += _more(len(difference.began) - SHOWN, "  ")
    if difference.apart:
        node, files = difference.apart[0]
        lines.append(
            f"Same steps, other results: {len(difference.apart)} of the {difference.compared} artifacts that both have."
        )
        lines += ["The first is", f"  {node.label}: {', '.join(files[:SHOWN])}", *_more(len(files) - SHOWN, "    ")]
    elif difference.compared:
        lines.append(f"The data of the {difference.compared} artifacts that both have is the same, bit by bit.")
    elif difference.shared:
        lines.append(f"{difference.shared} of the same steps are finished, each one artifact that both runs share.")
    return "\n".join(lines)


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _by_part(keys: list[str]) -> str:
    """Group keys by the part of the config that they are in.

    >>> _by_part(["rounds", "game.mine.depth", "game.train.updates"])
    'rounds, game (2 keys)'
    """
    parts = Counter(key.partition(".")[0] for key in keys)
    return ", ".join(f"{part} ({count} keys)" if count > 1 else part for part, count in parts.items())


def _told(changed: list[Change], wide: int, indent: str = "  ") -> list[str]:
    """Return a line for each key: its path, and both values."""

    def short(value: Any) -> str:
        return textwrap.shorten(text_of(value), 48, placeholder="…")

    return [f"{indent}{key:{wide}}  {short(before)}  ->  {short(after)}" for key, before, after in changed]


def _more(count: int, indent: str) -> list[str]:
    return [f"{indent}and {count} more"] if count > 0 else []
