"""Which steps of a graph have to run, and the state of each."""

from collections.abc import Iterable
from typing import Literal

from workflows.store.dag import Step, graph
from workflows.store.store import Store

State = Literal["done", "partial", "to do", "not needed"]


def pending(wanted: Iterable[Step], store: Store, *, complete: bool = False) -> list[Step]:
    """The steps that have to run for the wanted ones, inputs first. An unfinished step that none of them needs is left
    out.

    A wanted step with dropped parts counts as done, unless `complete` asks for the wanted steps with all their parts.
    """
    wanted = list(wanted)
    store.prefetch_records(graph(wanted))
    ordered: dict[str, Step] = {}

    def visit(node: Step) -> None:
        if node.fingerprint in ordered:
            return
        for before in node.upstream:
            if not store.is_complete(before):
                visit(before)
        ordered[node.fingerprint] = node

    for node in wanted:
        if not (store.is_complete(node) if complete else store.is_done(node)):
            visit(node)
    return list(ordered.values())


def states(wanted: list[Step], store: Store) -> list[tuple[Step, State]]:
    """Every step of the graph with its state."""
    waiting = pending(wanted, store)
    fingerprints, started = {node.fingerprint for node in waiting}, store.started(waiting)

    def state(node: Step) -> State:
        if node.fingerprint in fingerprints:
            return "partial" if node.name in started else "to do"
        return "done" if store.is_done(node) else "not needed"

    return [(node, state(node)) for node in graph(wanted)]
