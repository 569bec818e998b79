"""Arguments that several commands share, which name an experiment and a cluster, and functions that open what they
name."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sparring.components.config import Damaged, UserError, listing
from sparring.components.files import nearest, unwritable
from sparring.components.yaml_files import set_once
from sparring.workflows import ROOT
from sparring.workflows.distributed import session
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.program import program
from sparring.workflows.report.page import REPORT
from sparring.workflows.report.runs import Run, read_runs
from sparring.workflows.store import object_store, s3
from sparring.workflows.store.availability import NotMade, damage
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

LAPTOP = ROOT / "cluster" / "laptop.yaml"
ANOTHER_STORE = "another place (--store PLACE, or $SPARRING_STORE)"
ANOTHER_RUNS = "another folder (--runs FOLDER)"


def add_config(
    parser: argparse.ArgumentParser,
    accepted: str = "an experiment, such as configs/demo.yaml",
    *,
    optional: bool = False,
) -> None:
    """Add the arguments that name an experiment. If `optional`, the experiment may be left out."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help=accepted, nargs="?" if optional else None)
    add_assignments(parser)


class Assign(argparse.Action):
    """Action that appends an assignment to those before it, unless an earlier one sets its key to another value."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if "=" not in values:
            raise argparse.ArgumentError(self, f"got {values!r}; accepted: KEY=VALUE, as one word")
        try:
            setattr(namespace, self.dest, set_once([*getattr(namespace, self.dest), values]))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def add_assignments(parser: argparse.ArgumentParser) -> None:
    """Add the argument that changes values of an experiment."""
    parser.add_argument(
        "--set",
        action=Assign,
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="change a value: rounds=3, retriever.game.train.updates=200 (part of the experiment's identity)",
    )


def add_cluster(parser: argparse.ArgumentParser, default: Path = LAPTOP) -> None:
    """Add the argument that names a cluster profile."""
    parser.add_argument(
        "--cluster",
        type=Path,
        default=default,
        metavar="FILE",
        help=f"profile of the machines to run on; it never changes a result (default: cluster/{default.name})",
    )


def opened(arguments: argparse.Namespace, *, asks: bool = True) -> tuple[Experiment, Store]:
    """Return the experiment that the arguments name, and the store. Unless the command `asks` the store for anything, a
    store on S3 need not be reachable."""
    root = store_root(arguments)
    if not asks and s3.is_cached(place := s3.local_path(root)):
        return loading.read(arguments.config, arguments.assignments, arguments.runs), Store(place)
    experiment = _read(arguments)
    store = object_store.open_store(root)
    store.prefetch_records(graph(experiment.wanted))
    return experiment, store


def _read(arguments: argparse.Namespace) -> Experiment:
    return loading.read(arguments.config, arguments.assignments, arguments.runs, store_root(arguments))


def run_command(arguments: argparse.Namespace, *, local: bool = True) -> str:
    """Return the command that runs or resumes an experiment. If `local`, add the places on this machine."""
    words = [word for assignment in arguments.assignments for word in ("--set", assignment)]
    places = ["--store", str(arguments.store)] if local and arguments.store else []
    places += ["--runs", str(arguments.runs)] if local and arguments.runs != Path("runs") else []
    cluster = getattr(arguments, "cluster", LAPTOP)
    words += ["--cluster", str(cluster)] if local and cluster not in (None, LAPTOP) else []
    return shlex.join([*program().split(), *places, "run", str(arguments.config), *words])


def newest(experiment: Experiment, store: Store, arguments: argparse.Namespace) -> Experiment:
    """Return the experiment with its newest outcome. If that is an early one, say so on stderr."""
    if (interim := (experiment := experiment.newest(store)).outcome.interim) is not None:
        print(
            f"{arguments.config}: the run is not finished. This is its verdict {interim.moment}. "
            f"{len(interim.missing)} of its systems are not measured yet. To go on: {run_command(arguments)}",
            file=sys.stderr,
        )
    return experiment


def other_runs(arguments: argparse.Namespace) -> str:
    """Return words for the end of an error: which other runs of a config are finished, or why that is unknown."""
    if loading.is_system(arguments.config):
        return ""
    experiment = _read(arguments)
    if any(default.guessed for default in experiment.defaults):
        missing = next(iter(experiment.config.data.missing()), "the collection")
        return (
            f"; {missing} is not here, by which numbers of this config are chosen: a run of it may be finished, "
            "and its folder stands for the config"
        )
    runs = [run for run in loading.other_runs(experiment) if (run / REPORT).is_file()]
    return f"; or give another run's folder in place of the config: {listing(runs)}" if runs else ""


def add_pair(parser: argparse.ArgumentParser, option: str, does: str) -> None:
    """Add an option that takes two runs in place of an experiment."""
    parser.add_argument(
        option,
        nargs=2,
        type=Path,
        metavar="RUN",
        dest="pair",
        help=f"{does}: two folders of runs, such as runs/demo, or configs",
    )


def opened_pair(arguments: argparse.Namespace, option: str) -> list[Run] | None:
    """Return the two runs that an option names, or None if the arguments name an experiment instead. UserError for
    neither and for both."""
    if arguments.pair is None:
        if arguments.config is None:
            raise UserError(f"nothing to open; accepted: CONFIG, or {option} RUN RUN")
        return None
    if arguments.config is not None or arguments.assignments:
        raise UserError(f"{option} takes two runs and nothing else; a run with --set has a folder of its own in runs/")
    return read_runs(arguments.pair, arguments.runs, store_root(arguments))


def store_root(arguments: argparse.Namespace) -> str:
    """Return the place of the store: `--store`, `$SPARRING_STORE`, the store that a run's folder links to, or
    `store`."""
    return str(arguments.store or os.environ.get("SPARRING_STORE") or _linked_store(arguments) or "store")


def _linked_store(arguments: argparse.Namespace) -> Path | str | None:
    """Return the store of a run whose folder stands in place of a config. Return None if it is the folder `store`."""
    folder = getattr(arguments, "config", None)
    links = (path for path in sorted(folder.iterdir()) if path.is_symlink()) if folder and folder.is_dir() else ()
    place = next((link.resolve().parent for link in links), None)
    if place is None or place == Path("store").resolve():
        return None
    return s3.url(place) if s3.is_cached(place) else place


def check_places(arguments: argparse.Namespace, experiment: Experiment, store: Store, waiting: Iterable[Step]) -> None:
    """Raise UserError if a run could not write its folder, or a waiting step its artifact."""
    for place in dict.fromkeys(nearest(store.path(node)) for node in waiting):
        if reason := unwritable(place):
            another = "another cache ($SPARRING_CACHE)" if s3.is_cached(store.root) else ANOTHER_STORE
            raise UserError(f"{store_root(arguments)}: the store cannot be there, as {reason}; accepted: {another}")
    if reason := unwritable(experiment.run):
        raise UserError(f"{experiment.run}: the run cannot be there, as {reason}; accepted: {ANOTHER_RUNS}")


def check_output(path: Path, accepted: str) -> None:
    """Raise UserError if a command could not write the file or the folder that the user named."""
    if reason := unwritable(path.absolute().parent):
        raise UserError(f"{path}: cannot be written, as {reason}; accepted: {accepted}")


def labelled(experiment: Experiment, label: str) -> Step:
    """Return the step with a label. UserError lists the existing labels."""
    nodes = graph(experiment.wanted)
    for node in nodes:
        if node.label == label:
            return node
    labels = list(dict.fromkeys(node.label for node in nodes))
    near = get_close_matches(label, labels, 2)
    meant = f"did you mean {' or '.join(map(repr, near))}? `plan` lists all of them"
    raise UserError(f"no step is labelled {label!r}; {meant if near else f'accepted: {listing(labels)}'}")


def labelled_here(error: NotMade, arguments: argparse.Namespace) -> NotMade:
    """Return the error with the label that the named experiment has for what was not made."""
    if loading.is_system(arguments.config):
        return error
    try:
        return error.as_in(graph(opened(arguments)[0].wanted))
    except UserError:  # another mistake than the one being reported
        return error


def is_finished(arguments: argparse.Namespace) -> bool:
    """Check whether the run that the arguments name has results."""
    if loading.is_system(arguments.config):
        return False
    try:
        experiment, store = opened(arguments)
        return store.is_done(experiment.outcome.results)
    except UserError:  # another mistake than the one being reported
        return False


def damaged(arguments: argparse.Namespace) -> Damaged | None:
    """Describe the first damaged file among the finished artifacts of the run that a failed command names. Return None
    if there is none."""
    if not isinstance(getattr(arguments, "config", None), Path) or loading.is_system(arguments.config):
        return None
    try:
        experiment = _read(arguments)
        store = object_store.open_store(store_root(arguments))
    except UserError:
        return None
    try:
        return damage(store.path(node) for node in graph(experiment.wanted) if store.is_done(node))
    except Damaged as record:
        return record


def leave() -> None:
    """Leave Ray, if a command joined it."""
    session.stop_ray()
