"""Write the report of a finished run, or compare two runs: one HTML file that needs no network."""

import argparse
from pathlib import Path

from sparring.components.config import UserError
from sparring.workflows.commands.shared_arguments import (
    ANOTHER_RUNS,
    add_config,
    add_pair,
    check_output,
    check_places,
    newest,
    opened,
    opened_pair,
)
from sparring.workflows.program import program
from sparring.workflows.report.comparison import write_comparison
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store.availability import finished

COMPARE = "--compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, optional=True)
    add_pair(parser, COMPARE, "compare two runs")


def call(arguments: argparse.Namespace) -> None:
    """Write the whole folder of a run, or the page of two runs, and print the path of the page."""
    if (pair := opened_pair(arguments, COMPARE)) is not None:
        first, second = pair
        for run, path in zip(pair, arguments.pair, strict=True):
            if run.store.record(run.experiment.outcome.results) is None:
                raise UserError(f"{path}: the run is not finished; finish it first: {program()} run {path}")
        page = arguments.runs / f"{'-against-'.join(_names(second.experiment.run, first.experiment.run))}.html"
        check_output(page, ANOTHER_RUNS)
        write_comparison(page, first, second)
        print(page)
        return
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.newest(store).results)
    folder = RunFolder(experiment, store)
    check_places(arguments, experiment, store, ())
    folder.write_plan()
    folder.link()
    RunFolder(newest(experiment, store, arguments), store).write_report(set(), anew=True)
    print(folder.page)


def _names(*runs: Path) -> list[str]:
    """Name runs. Runs with the same name get the names of their parent folders too."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else ["-".join(run.resolve().parts[-2:]) for run in runs]
