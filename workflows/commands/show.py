"""Print the verdict and the measures, the record of one step, the progress of a run, or what differs between two."""

import argparse
import json

from sparring.components.evaluation import result_table
from sparring.workflows.commands.shared_arguments import (
    add_config,
    add_pair,
    labelled,
    newest,
    opened,
    opened_pair,
    run_command,
)
from sparring.workflows.commands.watch import trials_in, trials_view, view, watch
from sparring.workflows.report.differences import differences, told
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store.availability import NotMade, finished
from sparring.workflows.store.dag import Step
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import is_another

DIFF = "--diff"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, optional=True)
    parser.add_argument("label", nargs="?", metavar="LABEL", help="a step's label, as `plan` prints it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--watch", action="store_true", help="follow a run that another shell started until it ends")
    add_pair(parser, DIFF, "print what differs between two runs, and the step where it began")


def call(arguments: argparse.Namespace) -> None:
    """Print the measures of a run, the trials of a tuning or the record of a step. Or watch a run, or compare two."""
    if (pair := opened_pair(arguments, DIFF)) is not None:
        print(told(differences(*pair), *(run.name for run in pair)))
        return
    experiment, store = opened(arguments)
    if arguments.watch:
        watch(experiment, store, run_command(arguments))
        return
    if arguments.label is not None:
        _record(labelled(experiment, arguments.label), store, as_json=arguments.json)
        return
    trials = None if store.is_done(experiment.outcome.results) else trials_in(experiment.run)
    if trials is not None:
        if not arguments.json and is_another(trials.identity, arguments):
            print("of the config as it was then; `tune` begins anew:")
        print(json.dumps(trials.fields, indent=1) if arguments.json else trials_view(trials))
        return
    if not store.is_done(experiment.outcome.newest(store).results):
        if arguments.json:
            raise NotMade(f"{arguments.config}: no results yet: they are made last")
        print(view(experiment, store, pending(experiment.wanted, store), run_command(arguments)))
        return
    if not arguments.json and not store.is_done(experiment.outcome.results):
        print(f"{view(experiment, store, pending(experiment.wanted, store), run_command(arguments))}\n")
    metrics = RunFolder(newest(experiment, store, arguments), store).metrics()
    print(json.dumps(metrics, indent=1) if arguments.json else result_table.table(metrics))


def _record(node: Step, store: Store, *, as_json: bool) -> None:
    """Print a step's record."""
    record = finished(store, node)
    if as_json:
        print(json.dumps(record, indent=1))
        return
    print(f"{node.label}: {record['function']} in {record['seconds']:.1f} s\n{store.location(node)}")
    for key, value in record["summary"].items():
        print(f"  {key}: {json.dumps(value)}")
