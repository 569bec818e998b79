"""Find the steps of a graph that have to run, and the state of each."""

from collections.abc import Iterable
from typing import Literal

from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

State = Literal["done", "partial", "to do", "not needed"]


def pending(requested: Iterable[Step], store: Store, *, complete: bool = False) -> list[Step]:
    """Return the steps that have to run for the requested steps, inputs first.

    Unfinished steps that no requested step needs are left out. So are steps that lack only dropped parts, unless a step
    that runs reads those parts. A requested step with dropped parts counts as done, unless `complete` asks for all
    parts.
    """
    requested = list(requested)
    store.prefetch_records(graph(requested))
    needed_steps: set[str] = set()

    def visit(node: Step) -> None:
        if node.fingerprint in needed_steps:
            return
        needed_steps.add(node.fingerprint)
        for source in node.upstream:
            if not _is_readable(source, node, store):
                visit(source)

    for node in requested:
        if not (store.is_complete(node) if complete else store.is_done(node)):
            visit(node)
    return [node for node in graph(requested) if node.fingerprint in needed_steps]


def _is_readable(before: Step, node: Step, store: Store) -> bool:
    """Check whether all files that a step reads of an input's artifact are there."""
    record = store.record(before)
    return record is not None and not any(node.reads(before, files) for files in record["dropped"])


def states(wanted: list[Step], store: Store) -> list[tuple[Step, State]]:
    """Return every step of the graph with its state."""
    waiting = pending(wanted, store)
    fingerprints, started = {node.fingerprint for node in waiting}, store.started(waiting)

    def state(node: Step) -> State:
        if node.fingerprint in fingerprints:
            return "partial" if node.name in started else "to do"
        return "done" if store.is_done(node) else "not needed"

    return [(node, state(node)) for node in graph(wanted)]
