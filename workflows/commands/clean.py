"""Drop superseded vectors, indexes and optimizer states of a finished run. Every result stays. With --whole, remove all
that the run has in the store, except what other runs here use too."""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.workflows.commands.shared_arguments import add_config, opened
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment, is_run
from sparring.workflows.quantities import size
from sparring.workflows.report.run_folder import PLAN, removing
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Artifact, Store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.rows import Outcome
from sparring.workflows.tuning.trials import TrialTable


def superseded(experiment: Experiment, store: Store) -> Iterator[tuple[Step, list[str], int]]:
    """Yield steps, their files that may be dropped (glob patterns), and the files' bytes.

    A step's droppable files, such as vectors and indexes, may go unless something still uses them. The last retrieval
    uses them, and so do the systems that `search` and `export` take, of this run and of runs next to it. Files from
    which only a later step could continue, such as the optimizer's state of an earlier training, may go too. Files that
    an unfinished run next to it uses stay.
    """
    last = {node.fingerprint for node in _kept(experiment.outcome, store)}
    for run in _beside(experiment):
        unfinished = bool(pending(run.wanted, store))
        last |= {node.fingerprint for node in (graph(run.wanted) if unfinished else _kept(run.outcome, store))}
    nodes = graph(experiment.wanted)
    carried_on = {node.inputs[name].fingerprint for node in nodes for name in node.description.carries}
    for node in nodes:
        droppable = () if node.fingerprint in last else node.description.droppable
        files = [*droppable, *(node.description.carried if node.fingerprint in carried_on - last else ())]
        if files and store.is_done(node):
            (size,) = store.sizes([node], *files)
            if size:
                yield node, files, size


def _kept(outcome: Outcome, store: Store) -> Iterator[Step]:
    """Yield the vectors and indexes of the last retrieval, and of the systems that `search` and `export` take."""
    if outcome.retrieval is not None:
        yield from (outcome.retrieval.vectors, *outcome.retrieval.kept)
    for chosen in (deployable.asked, deployable.exported):
        with suppress(UserError):  # there is none
            if (row := chosen(outcome, store)) is not None:
                for stage in deployable.Deployment.of_row(row).stages.values():
                    yield from stage.searched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be dropped")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="remove the run's artifacts, finished or not, that no other run in the folder of runs (--runs) uses; its "
        "report stays",
    )


def call(arguments: argparse.Namespace) -> None:
    """Drop what no finished result needs any more, or everything."""
    experiment, store = opened(arguments)
    if not arguments.whole and pending(experiment.wanted, store):
        if not store.started(graph(experiment.wanted)):
            raise UserError("no step of this run is finished or started; there is nothing to clean")
        raise UserError(
            "the run is not finished, and still needs what clean drops; accepted: --whole, which removes all of it"
        )
    if arguments.dry_run:
        _free(arguments, experiment, store)
        return
    with removing(experiment.run) as alone:
        if not alone:
            raise UserError(f"{experiment.run}: a run is under way in it, or a service answers from it; stop it first")
        _free(arguments, experiment, store)
        if not arguments.whole:
            return
        (experiment.run / PLAN).unlink(missing_ok=True)  # the run uses nothing any more
        if (table := TrialTable.read(experiment.run)) is not None:
            table.forget_artifacts()
            table.save()
        for link in experiment.run.glob("*"):
            if link.is_symlink():
                link.unlink(missing_ok=True)


def _free(arguments: argparse.Namespace, experiment: Experiment, store: Store) -> None:
    """Drop artifacts or their parts. With `--dry-run`, only say which."""
    freed = 0
    removals = _own(experiment, store) if arguments.whole else superseded(experiment, store)
    for node, parts, count in removals:
        if not arguments.dry_run:
            store.drop(node, parts) if parts else store.remove(node)
        freed += count
        text = f"{node.label}: {listing(parts)}" if parts else node.label
        print(f"{'would drop' if arguments.dry_run else 'dropped'} {size(count):>8}  {text}")
    print(f"{size(freed)} {'to free' if arguments.dry_run else 'freed'}")


def _beside(experiment: Experiment) -> Iterator[Experiment]:
    """Yield the other runs in the folder of runs, and another config's run in this run's folder. UserError if a
    config cannot be read."""
    names = _names(experiment)
    for run in sorted(experiment.run.parent.glob("*")):
        if is_run(run) and (run / PLAN).is_file():
            try:
                neighbour = loading.read(run, [], run.parent)
            except UserError as error:
                raise UserError(
                    f"{run} may use what would be removed, and its config cannot be read; fix the config, or "
                    f"remove the folder: {error}"
                ) from None
            if run != experiment.run or _names(neighbour) != names:
                yield neighbour


def _tables_beside(experiment: Experiment) -> Iterator[TrialTable]:
    """Yield the trials of the other tunings in the folder of runs."""
    for run in sorted(experiment.run.parent.glob("*")):
        if run != experiment.run and (table := TrialTable.read(run)) is not None:
            yield table


def _names(experiment: Experiment) -> set[str]:
    return {node.name for node in graph(experiment.wanted)}


def _own(experiment: Experiment, store: Store) -> Iterator[tuple[Step | Artifact, list[str], int]]:
    """Yield the artifacts of a run and of its tuning's past and present trials, if they have files and no other run
    uses them. Each comes with no parts, which means all parts, and with its bytes. UserError if a driver is at work on
    one."""
    table, names = TrialTable.read(experiment.run), _names(experiment)
    tried = [] if table is None else [store.artifact(name) for name in table.artifacts if name not in names]
    nodes: list[Step | Artifact] = [*graph(experiment.wanted), *tried]
    if holders := store.holders(nodes):
        name, holder = next(iter(holders.items()))
        raise UserError(f"{name}: {holder} is working on it; stop it first")
    # By their configs, because a run in progress has no links yet. Also by their links, because the files that a config
    # builds on may have been edited since.
    neighbours = list(_beside(experiment))
    if any(neighbour.run == experiment.run for neighbour in neighbours):
        raise UserError(
            f"{experiment.run}: the config was changed since this run. To remove the run's artifacts, give this folder "
            "instead of the config."
        )
    used = {name for neighbour in neighbours for name in _names(neighbour)}
    used |= {
        Path(link.readlink()).name
        for run in experiment.run.parent.glob("*")
        if run != experiment.run and is_run(run)
        for link in run.iterdir()
        if link.is_symlink()
    }
    used |= {name for table in _tables_beside(experiment) for trial in table.trials for name in trial.artifacts}
    started = store.started(nodes)
    for node in nodes:
        if node.name in started and node.name not in used:
            (size,) = store.sizes([node])
            yield node, [], size
    if shared := [node.label for node in nodes if node.name in started & used]:
        print(f"kept, as other runs in {experiment.run.parent} use them: {listing(shared)}")
