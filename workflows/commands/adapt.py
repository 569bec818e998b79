"""Adapt to a collection in one command: look at a folder of files, write a config for it, and run it. It does what
`init` and `run` do. Repeat the command to resume: a config that is there is used as it is."""

import argparse
import shlex
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.sources.base import locate
from sparring.components.yaml_files import read_yaml
from sparring.workflows.commands import init, run
from sparring.workflows.commands.shared_arguments import add_assignments
from sparring.workflows.program import program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    init.add_arguments(parser)
    add_assignments(parser)
    run.add_options(parser)


def call(arguments: argparse.Namespace) -> None:
    """Write the config if it is missing, and run it. UserError if the collection leaves the user a decision."""
    file = init.config_file(arguments)
    if file.exists() and not arguments.overwrite:
        _check_same(arguments.folder, file)
        print(f"{file}: is there already, and is run as it is. With --overwrite it is written again.", flush=True)
    else:
        written = init.write_config(arguments.folder, file, overwrite=arguments.overwrite)
        print(f"\nwrote {file}", flush=True)
        drops = "data.on_bad=drop" in arguments.assignments
        if written.decision and not (written.only_bad and drops):
            raise UserError(
                f"{file}: it is not run yet, as the collection leaves you a decision.",
                *written.steps,
                f"Then repeat the command, or `{program()} run {shlex.quote(str(file))}`.",
                key=str(file),
                code="undecided",
            )
    arguments.configs = [file]
    run.call(arguments)


def _check_same(folder: Path, file: Path) -> None:
    """Raise UserError if a config reads another collection than the folder."""
    data = read_yaml(file).get("data")
    path = data.get("path") if isinstance(data, dict) else None
    place = folder.resolve()
    if path is None or locate(str(path)).resolve() not in (place, place.parent if place.is_file() else place):
        raise UserError(
            f"{file}: it is the config of another collection than {folder}. Name another file (-o FILE), or replace it "
            "(--overwrite).",
            key=str(file),
            code="exists",
        )
