"""Drop superseded vectors, indexes and optimizer states of a finished run; every result stays. With --whole, remove all
that a run has in the store, but for what the other runs here use too."""

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
    """Steps, the files of them that may go (glob patterns), and their bytes.

    Those are what a step's function calls droppable, such as vectors and indexes, unless it belongs to the last
    retrieval or to the systems that `search` and `export` take, of this run or of another beside it, and what only a
    later step could carry on from, such as the optimizer's state of an earlier training. What an unfinished run beside
    it uses stays.
    """
    last = {node.fingerprint for node in _kept(experiment.outcome, store)}
    for other in _beside(experiment):
        unfinished = bool(pending(other.wanted, store))
        last |= {node.fingerprint for node in (graph(other.wanted) if unfinished else _kept(other.outcome, store))}
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
    """The vectors and indexes of the last retrieval, and of the systems that `search` and `export` take."""
    yield from (outcome.retrieval.vectors, *outcome.retrieval.kept)
    for chosen in (deployable.asked, deployable.exported):
        with suppress(UserError):  # there is none
            if (row := chosen(outcome, store)) is not None:
                for stage in deployable.Deployment.of_row(row).stages.values():
                    yield from stage.searched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be dropped")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="remove the run's artifacts, finished or not, that no other run in the folder of runs (--runs) uses; its "
        "report stays",
    )


def call(arguments: argparse.Namespace) -> None:
    """Drop what no finished result needs any more, or all."""
    experiment, store = opened(arguments)
    if not arguments.whole and pending(experiment.wanted, store):
        if not store.started(graph(experiment.wanted)):
            raise UserError("nothing of it has been run")
        raise UserError(
            "the run is not finished; clean drops what only an unfinished run still needs; accepted: "
            "--whole, which removes all of it"
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
        (experiment.run / PLAN).unlink(missing_ok=True)  # it uses nothing any more
        if (table := TrialTable.read(experiment.run)) is not None:
            table.forget_artifacts()
            table.save()
        for link in experiment.run.glob("*"):
            if link.is_symlink():
                link.unlink(missing_ok=True)


def _free(arguments: argparse.Namespace, experiment: Experiment, store: Store) -> None:
    """Drop it, or say what would be dropped."""
    freed = 0
    found = _own(experiment, store) if arguments.whole else superseded(experiment, store)
    for node, parts, count in found:
        if not arguments.dry_run:
            store.drop(node, parts) if parts else store.remove(node)
        freed += count
        what = f"{node.label}: {listing(parts)}" if parts else node.label
        print(f"{'would drop' if arguments.dry_run else 'dropped'} {size(count):>8}  {what}")
    print(f"{size(freed)} {'to free' if arguments.dry_run else 'freed'}")


def _beside(experiment: Experiment) -> Iterator[Experiment]:
    """The other runs in the folder of runs, and that of another config which the run's own folder holds. UserError
    where a config cannot be read."""
    own = _names(experiment)
    for run in sorted(experiment.run.parent.glob("*")):
        if is_run(run) and (run / PLAN).is_file():
            try:
                other = loading.read(run, [], run.parent)
            except UserError as error:
                raise UserError(
                    f"{run} may use what would be removed, and its config cannot be read; mend that, or "
                    f"remove the folder: {error}"
                ) from None
            if run != experiment.run or _names(other) != own:
                yield other


def _tables_beside(experiment: Experiment) -> Iterator[TrialTable]:
    """The trials of the other tunings in the folder of runs."""
    for run in sorted(experiment.run.parent.glob("*")):
        if run != experiment.run and (table := TrialTable.read(run)) is not None:
            yield table


def _names(experiment: Experiment) -> set[str]:
    return {node.name for node in graph(experiment.wanted)}


def _own(experiment: Experiment, store: Store) -> Iterator[tuple[Step | Artifact, list[str], int]]:
    """The artifacts of a run, and of its tuning's trials of now and earlier, that have files and that no other run
    beside it uses; no parts of them, for all, and their bytes. UserError where a driver is at work on one."""
    table, names = TrialTable.read(experiment.run), _names(experiment)
    tried = [] if table is None else [store.artifact(name) for name in table.artifacts if name not in names]
    nodes: list[Step | Artifact] = [*graph(experiment.wanted), *tried]
    if holders := store.holders(nodes):
        name, holder = next(iter(holders.items()))
        raise UserError(f"{name}: {holder} is working on it; stop it first")
    # By their configs, as a run that is under way has no links yet; and by their links, as what a config builds on may
    # have been edited since.
    beside = list(_beside(experiment))
    if any(other.run == experiment.run for other in beside):
        raise UserError(
            f"{experiment.run}: holds the run of another config than this one now is; accepted: that folder in its "
            "place, which removes what the run has"
        )
    used = {name for other in beside for name in _names(other)}
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
