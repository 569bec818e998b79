"""Keep the measures of a finished run, and how they were made, as one small JSON file that can be committed. It
replaces an older record of the same config with the same values set."""

import argparse
import shlex
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.files import replacing
from sparring.workflows.commands.shared_arguments import add_config, check_output, opened
from sparring.workflows.program import located
from sparring.workflows.report.record import config_name, record_of, recorded, text_of
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store.availability import finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to write, such as ar2-docstrings.json")


def call(arguments: argparse.Namespace) -> None:
    """Write the record, and print its place."""
    check_output(arguments.file, "another FILE")
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.results)
    name = config_name(located(arguments.config))
    if arguments.file.exists() and recorded(arguments.file) != (name, list(arguments.assignments)):
        command = shlex.join([name, *(word for assignment in arguments.assignments for word in ("--set", assignment))])
        raise UserError(f"{arguments.file}: is there already, and no record of {command}; accepted: another FILE")
    folder = RunFolder(experiment, store)
    record = record_of(
        folder.metrics(),
        folder.finished_steps(),
        experiment.outcome,
        config=located(arguments.config),
        assignments=arguments.assignments,
    )
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(arguments.file) as path:
        path.write_text(text_of(record))
    print(arguments.file)
