"""Print every step with its state and its place; run nothing. With --cluster, also check that the profile's machines
can do the work."""

import argparse
from pathlib import Path

from workflows.commands.opening import add_config, opened
from workflows.distributed import cluster as clusters
from workflows.running.plan import defaults_text, plan_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="check that what this profile names can run it")


def call(arguments: argparse.Namespace) -> None:
    """Print the plan."""
    experiment, store = opened(arguments)
    if arguments.cluster:
        clusters.read_cluster(arguments.cluster).check()
    print(plan_text(experiment.wanted, store))
    if experiment.defaults:
        print(f"\nleft open, filled in:\n{defaults_text(experiment.defaults)}\n")
    data = experiment.outcome.data
    missing = data.inputs["source"].missing()
    if missing and not store.is_done(data):
        print(f"source missing: {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
