"""Write the report of a finished run: one HTML file that needs no network."""

import argparse

from workflows.commands.opening import add_config, opened
from workflows.report.run_folder import RunFolder
from workflows.store.needed import finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)


def call(arguments: argparse.Namespace) -> None:
    """Write the whole folder of the run, and print where the page lies."""
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.results)
    folder = RunFolder(experiment, store)
    folder.write_plan()
    folder.link()
    folder.write_report(set(), anew=True)
    print(folder.page)
