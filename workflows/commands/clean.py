"""Drop superseded vectors, indexes and optimizer states of a finished run; every result stays."""

import argparse
from collections.abc import Iterator
from contextlib import suppress

from components.config import UserError, listing
from workflows.commands.opening import add_config, opened
from workflows.stages import systems
from workflows.stages.experiments import Experiment
from workflows.stages.results import Outcome
from workflows.store.dag import Step, graph
from workflows.store.planner import pending
from workflows.store.store import Store


def superseded(experiment: Experiment, store: Store) -> Iterator[tuple[Step, list[str], int]]:
    """Steps, the files of them that may go (glob patterns), and their bytes.

    Those are what a step's function calls droppable, such as vectors and indexes, unless it belongs to the last
    retrieval or to the system that `export` takes, and what only a later step could carry on from, such as the
    optimizer's state of an earlier training.
    """
    last = {node.fingerprint for node in _kept(experiment.outcome, store)}
    nodes = graph(experiment.wanted)
    carried_on = {node.inputs[name].fingerprint for node in nodes for name in node.description.carries}
    for node in nodes:
        droppable = () if node.fingerprint in last else node.description.droppable
        files = [*droppable, *(node.description.carried if node.fingerprint in carried_on else ())]
        if files and store.is_done(node):
            (size,) = store.sizes([node], *files)
            if size:
                yield node, files, size


def _kept(outcome: Outcome, store: Store) -> Iterator[Step]:
    """The vectors and indexes of the last retrieval, and of the system that is to be deployed."""
    yield from (outcome.retrieval.vectors, *outcome.retrieval.needed)
    name = systems.recommended(outcome, store)
    if name is not None:
        with suppress(UserError):  # it is none that can be exported
            stages = systems.stages(systems.chosen(outcome, name))
            yield from [systems.searched(stages["dense"])] if "dense" in stages else []
            yield from [stages["lexical"].inputs["index"]] if "lexical" in stages else []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be dropped")


def call(arguments: argparse.Namespace) -> None:
    """Drop what no finished result needs any more."""
    experiment, store = opened(arguments)
    if pending(experiment.wanted, store):
        raise UserError("the run is not finished; clean drops what only an unfinished run still needs")
    freed = 0
    for node, parts, size in superseded(experiment, store):
        freed += size
        print(
            f"{'would drop' if arguments.dry_run else 'dropped'} {size / 2**20:8.1f} MB  {node.label}: {listing(parts)}"
        )
        if not arguments.dry_run:
            store.drop(node, parts)
    print(f"{freed / 2**20:.1f} MB {'to free' if arguments.dry_run else 'freed'}")
