"""The finished steps of a run, as the report reads them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

Json = dict[str, Any]

Finished = Sequence[tuple[Step, Json]]
"""Finished steps with their records, inputs first."""


def finished_steps(wanted: Iterable[Step], store: Store) -> list[tuple[Step, Json]]:
    """Return the finished steps of a graph with their records."""
    return [(node, record) for node in graph(wanted) if (record := store.record(node)) is not None]


def shown(steps: Finished, store: Store, name: str) -> Iterator[tuple[Step, Json, Any]]:
    """Yield the steps that show a JSON file in the report: the step, its record, and the file's content."""
    showing = [(node, record) for node, record in steps if name in node.description.shows]
    store.fetch([node for node, _ in showing], name)
    for node, record in showing:
        path = store.path(node) / name
        if path.exists():
            yield node, record, _read(path)


def _read(path: Path) -> Any:
    """Read a JSON file. From a file with a value on each line, read a list."""
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
