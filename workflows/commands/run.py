"""Run the steps that are not done. Repeat the command to resume a run that was stopped. Several experiments are run one
after another, and share their steps."""

import argparse
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.components.evaluation import result_table
from sparring.workflows.commands.batch import add_configs, named, one_by_one
from sparring.workflows.commands.shared_arguments import add_cluster, check_places, labelled, opened
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.estimating.run_time import foresee, how_far_off
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.program import located, program
from sparring.workflows.quantities import duration
from sparring.workflows.report.early import EarlyVerdicts
from sparring.workflows.report.run_folder import RunFolder, at_work
from sparring.workflows.report.scores import Scores
from sparring.workflows.report.timeline import timeline, where
from sparring.workflows.running.executor import check_present, check_source_files
from sparring.workflows.running.runner import run_steps
from sparring.workflows.running.tracking import check_installed, open_tracker
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.planner import pending, states
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable

MEASURED = 20
"""Systems whose scores are printed again when a run goes on."""
TELLING = 10.0
"""Seconds of a run from which on it tells something of its estimate."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configs(parser)
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that do not name the experiment."""
    add_cluster(parser)
    parser.add_argument("--until", metavar="LABEL", help="stop when the step with this label is done")
    parser.add_argument("--no-estimate", action="store_true", help="begin without saying how long it may take")
    # A job runs a copy of the config; this is the path that its user knows.
    parser.add_argument("--known-as", type=Path, help=argparse.SUPPRESS)


def call(arguments: argparse.Namespace) -> None:
    """Run the experiments that the arguments name."""
    called: dict[str, Path] = {}
    for path in named(arguments):
        name = loading.name_of(located(path))
        if called.setdefault(name, path) != path:
            raise UserError(
                f"{path}: its run would have the folder of {called[name]}'s, {arguments.runs / name}; "
                "accepted: files of different names"
            )
    one_by_one(arguments, run_one)


def run_one(arguments: argparse.Namespace) -> None:
    """Run what is not done of an experiment, write the run's folder, and print the table."""
    experiment, store = opened(arguments)
    check_source_files(graph(experiment.wanted), store)
    wanted = [labelled(experiment, arguments.until)] if arguments.until is not None else experiment.wanted
    cluster = clusters.read_cluster(arguments.cluster)
    waiting = pending(
        wanted, store, complete=arguments.until is not None
    )  # asked for by name: what was dropped is made again
    check_places(arguments, experiment, store, waiting)
    if waiting:  # what cannot be done is refused before anything is written
        check_present(waiting)
    machine = resolve_machine(cluster, store.root) if waiting else None
    check_installed(cluster.track)
    folder = RunFolder(experiment, store)
    folder.write_plan()
    if waiting and experiment.defaults:
        store.keep_config(experiment.run.name, experiment.config.model_dump(mode="json"))
    identity = experiment.outcome.results.fingerprint
    with at_work(experiment.run), open_tracker(experiment.run, cluster, identity) as tracker:
        expected = None if arguments.no_estimate else foresee(experiment, waiting, store, cluster)
        started = time.monotonic()
        tracker.send_finished(graph(wanted), store)
        waits, scores = list[float](), Scores(experiment.outcome.rows, store)
        verdicts = EarlyVerdicts(experiment, store, expected)
        _say_before(scores, waiting, graph(wanted))
        executed = set[str]()
        if machine is not None:
            executed = run_steps(
                waiting,
                store,
                machine,
                tracker,
                expected,
                first=_first(experiment, scores),
                on_waited=waits.append,
                on_done=lambda node: [*scores.after(node), *verdicts.after(node)],
            )
        folder.link()
        if arguments.until is not None:
            print(f"{arguments.until}: {store.location(wanted[0])}")
            return
        metrics = folder.write_report(executed)
        tracker.send_measures(metrics["rows"])
    print(result_table.table(metrics))
    if not waiting:
        lost = [node.label for node, state in states(wanted, store) if state == "not needed"]
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        again = f"; not there any more, and not needed: {listing(lost[:5])}{more}; --until LABEL makes one again"
        print("nothing to run: every step that this needs is done" + (again if lost else ""))
    elif executed:  # otherwise another driver did it all
        steps, _ = timeline(folder.finished_steps(), executed)
        seconds = time.monotonic() - started
        print(_done(len(executed), len(waiting), len(graph(wanted)), seconds))
        print(where(steps, seconds, sum(waits)))
        if expected is not None and len(executed) == len(waiting) and seconds >= TELLING:
            print(f"      {how_far_off(expected, seconds)}")
    print("\n".join(["", *_next(arguments, experiment, store, folder.page)]))


def _first(experiment: Experiment, scores: Scores) -> set[str]:
    """Return the fingerprints of steps that somebody waits for: those that measure, and all of the first verdict."""
    early = graph([outcome.results for outcome in experiment.outcome.early[:1]])
    return {*scores.steps, *(node.fingerprint for node in early)}


def _say_before(scores: Scores, waiting: list[Step], steps: list[Step]) -> None:
    """Print how many steps are done already, and the scores of systems that were measured before if a run goes on and
    measures others."""
    if 0 < len(waiting) < len(steps):
        print(f"resuming: {len(steps) - len(waiting)} of {len(steps)} steps are done already", file=sys.stderr)
    lines = scores.before(waiting) if any(node.fingerprint in scores.steps for node in waiting) else []
    if lines:
        more = f"  and {len(lines) - MEASURED} more, which `{program()} show` prints" if len(lines) > MEASURED else ""
        print("\n".join(["measured before:", *lines[:MEASURED], *([more] if more else [])]), file=sys.stderr)


def _done(executed: int, waiting: int, steps: int, seconds: float) -> str:
    """Say what the run did: `done: 12 of 30 steps in 1 min 05 s; 18 were done before`."""
    elsewhere = {"by other drivers": waiting - executed, "before": steps - waiting}
    rest = [f"{count} {'was' if count == 1 else 'were'} done {who}" for who, count in elsewhere.items() if count]
    return "; ".join([f"done: {executed} of {steps} steps in {duration(seconds)}", *rest])


def _next(arguments: argparse.Namespace, experiment: Experiment, store: Store, page: Path) -> list[str]:
    """Say where the report is, and with which commands to use what the run made."""
    lines = [f"report: {page}"]
    try:
        if deployable.asked(experiment.outcome, store) is None:
            return lines
    except UserError:  # no system is within the budget, which the verdict says
        return lines
    question = '"your question"'
    lines += [f"try:    {_command(arguments, 'search', question)}", f"page:   {_command(arguments, 'serve')}"]
    with suppress(UserError):  # no system can be written to a folder
        deployable.exported(experiment.outcome, store)
        lines.append(f"export: {_command(arguments, 'export', 'out')}")
    return lines


def _command(arguments: argparse.Namespace, command: str, *more: str) -> str:
    """Return a command line that applies another command to this run."""
    words = [program()]
    words += [f"--store {shlex.quote(str(arguments.store))}"] if arguments.store else []
    words += [f"--runs {shlex.quote(str(arguments.runs))}"] if arguments.runs != Path("runs") else []
    words += [f"{command} {shlex.quote(str(arguments.known_as or arguments.config))}", *more]
    words += [f"--set {shlex.quote(assignment)}" for assignment in arguments.assignments]
    return " ".join(words)
