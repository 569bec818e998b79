"""Search for better numbers with trials of the recipe on Ray Tune, then run the best trial's config. Repeat the command
to resume."""

import argparse
from pathlib import Path
from typing import Any

from sparring.workflows.commands import run, shared_arguments
from sparring.workflows.commands.shared_arguments import add_cluster, add_config, check_places, opened
from sparring.workflows.report.run_folder import RunFolder, at_work
from sparring.workflows.running.executor import check_present, check_source_files
from sparring.workflows.store.dag import graph
from sparring.workflows.store.planner import pending


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    add_cluster(parser)
    parser.add_argument("--trials-only", action="store_true", help="write the best config and do not run it")


def call(arguments: argparse.Namespace) -> None:
    """Run the trials, then the best trial's config."""
    from sparring.workflows.tuning import tune
    from sparring.workflows.tuning.config import read_tuning
    from sparring.workflows.tuning.first_trials import fixed_steps

    experiment, store = opened(arguments)
    check_places(arguments, experiment, store, graph(experiment.wanted))
    # Refuse what no trial can do before anything is written.
    wanted = [*experiment.wanted, *fixed_steps(read_tuning(arguments))]
    check_source_files(graph(wanted), store)
    check_present(pending(wanted, store))
    RunFolder(experiment, store).write_plan()  # so that `clean` sees the artifacts that it needs

    def then(best: Path) -> str:
        return shared_arguments.run_command(
            argparse.Namespace(**{**vars(arguments), "config": best, "assignments": []})
        )

    with at_work(experiment.run):
        best = tune.tune(arguments, store, then)
    if arguments.trials_only:
        print(f"next: {then(best)}   # its first lines say how to measure it on other queries")
        return
    shared_arguments.leave()  # this Ray has CPUs for many trials, so the run starts another
    new: dict[str, Any] = {"config": best, "known_as": None, "assignments": [], "until": None, "no_estimate": False}
    run.run_one(argparse.Namespace(**{**vars(arguments), **new}))
