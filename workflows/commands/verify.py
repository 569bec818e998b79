"""Read every file of a run's finished steps, and list those that are changed, lost or unreadable. On S3, which checks
its bytes itself, objects that were replaced or lost are found, and nothing is read."""

import argparse
from collections.abc import Sequence
from contextlib import suppress

from tqdm import tqdm

from sparring.components.config import Damaged, UserError, listing
from sparring.workflows.commands.batch import add_configs, one_by_one
from sparring.workflows.commands.shared_arguments import opened, run_command
from sparring.workflows.quantities import about, size
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configs(parser)
    parser.add_argument(
        "--remove", action="store_true", help="remove the changed artifacts, so that they are made again"
    )


def call(arguments: argparse.Namespace) -> None:
    """Verify the experiments that the arguments name."""
    one_by_one(arguments, verify)


def verify(arguments: argparse.Namespace) -> None:
    """Print a line per changed file. UserError if there are any, unless they are removed."""
    experiment, store = opened(arguments)
    nodes = [node for node in graph(experiment.wanted) if _has_record(node, store)]
    if not nodes:
        raise UserError("no step of this run is finished; there is nothing to verify")
    sizes = store.sizes(nodes)
    damaged, unknown = [], []
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for node in nodes:
            bar.set_description(node.label)
            changes = store.changes(node, bar.update)
            if changes is None:
                unknown.append(node.label)
            elif changes:
                damaged.append(node)
                lines = [f"  {node.label}: {store.location(node)}/{name} {change}" for name, change in changes.items()]
                bar.write("\n".join(lines))
    if unknown:
        print(f"not verified, as no digests were kept when they were finished: {listing(unknown)}")
    count = len(nodes) - len(unknown)
    if not damaged:
        print(f"{count} artifacts, {size(sum(sizes))}: every file is as its step left it")
        return
    again = " && ".join(f"{run_command(arguments)} --until {node.label!r}" for node in damaged)
    summary = f"{len(damaged)} of {count} artifacts are not as their steps left them"
    if not arguments.remove:
        took = _took(damaged, store)
        raise UserError(f"{summary}, above; `--remove` removes them, and this makes them again, in {took}: {again}")
    for node in damaged:
        store.remove(node)
    print(f"{summary}, and were removed; make them again: {again}")


def _has_record(node: Step, store: Store) -> bool:
    """Check whether an artifact is finished, or was before its record was damaged."""
    try:
        return store.is_done(node)
    except Damaged:
        return True


def _took(nodes: Sequence[Step], store: Store) -> str:
    """Format the time that artifacts took to make. Damaged records count nothing."""
    seconds = 0.0
    for node in nodes:
        with suppress(Damaged):
            seconds += (store.record(node) or {"seconds": 0.0})["seconds"]
    return about(seconds)
