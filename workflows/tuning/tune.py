"""Tune a recipe with Ray Tune. A trial is the experiment with changed values, up to the measures of some systems.

A trial itself needs no CPU: its process runs steps as a driver does, and the steps ask Ray for processors (`session`).
A step that trials share runs once, because the store has one place for it, with a lock. The store and `trials.json`
hold all state of a tuning. So repeat the command to resume; `run` can finish a trial that was stopped.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sparring.workflows.distributed.cluster import Cluster, read_cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.experiments import loading
from sparring.workflows.running.tracking import open_tracker
from sparring.workflows.stages.config import EvaluateConfig
from sparring.workflows.store.dag import StepFailed
from sparring.workflows.store.store import Store
from sparring.workflows.tuning import report
from sparring.workflows.tuning.capacity import concurrent_trials, driver_memory, machine_capacity
from sparring.workflows.tuning.config import TunedExperiment, read_tuning
from sparring.workflows.tuning.first_trials import fixed_trials
from sparring.workflows.tuning.monitor import Monitor
from sparring.workflows.tuning.sampler import draw
from sparring.workflows.tuning.session import run_trials
from sparring.workflows.tuning.trial import error, measures, run_shared_steps, run_trial
from sparring.workflows.tuning.trials import Trial, TrialTable

SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends this command as it ends every other one
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed reports no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # nobody reads what Tune saves
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Environment variables for Ray Tune. Variables that the environment already has stay as they are."""


def tune(arguments: argparse.Namespace, store: Store, then: Callable[[Path], str]) -> Path:
    """Run the unfinished trials and show the outcome; return the best trial's config, which `then` runs."""
    tuned = read_tuning(arguments)
    table = _empty_table(tuned)
    table.resume()
    _take_measures(tuned, table, store)
    draws = _add_fixed_trials(tuned, table)
    if draws or any(not trial.finished for trial in table.trials):
        _run(tuned, table, store, read_cluster(arguments.cluster), draws)
    table.save()
    return _show(tuned, table, store, then)


def _empty_table(tuned: TunedExperiment) -> TrialTable:
    """Create a table without trials."""
    tuning = tuned.tuning
    return TrialTable(
        folder=tuned.run,
        measure=tuning.measure,
        systems=tuning.systems,
        split=tuning.split,
        goal=tuning.goal,
        names=list(tuning.space),
        identity=tuned.identity,
    )


def _take_measures(tuned: TunedExperiment, table: TrialTable, store: Store) -> None:
    """Read the measures of an earlier run's trials from the store; a trial whose measure is not there waits again.

    Data may have changed since `clean` removed a measure, and trials are compared on the same data. The trials also get
    back the names of their artifacts, which `clean` makes the table forget.
    """
    for trial in table.trials:
        trial.artifacts = tuned.artifacts(trial.point)
        if trial.measures:
            stored = measures(tuned, trial, store)
            if len(stored) < len(trial.measures):
                trial.wait()
            trial.measures = stored


def _add_fixed_trials(tuned: TunedExperiment, table: TrialTable) -> int:
    """Add the fixed trials to the table; return how many points Optuna must draw while trials run."""
    tuning, fixed = tuned.tuning, fixed_trials(tuned)
    if tuning.search == "random":
        table.cut(len(fixed))
    for number, (point, values) in enumerate(fixed):
        if number >= len(table.trials):
            table.trials.append(Trial(number, point, values, artifacts=tuned.artifacts(point)))
    drawn_before = len(table.trials) - tuning.baseline
    return max(0, tuning.trials - drawn_before) if tuning.search == "optuna" else 0


def _run(tuned: TunedExperiment, table: TrialTable, store: Store, cluster: Cluster, draws: int) -> None:
    """Run the unfinished trials of the table, and `draws` more."""
    tuning = tuned.tuning
    waiting = [trial for trial in table.trials if not trial.finished]
    count = len(waiting) + draws
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    capacity = min(cluster.trials or machine_capacity(cluster.train.workers or 1), count)
    machine = resolve_machine(cluster, store.root, trials=capacity)
    table.save()
    ray_session(cluster, trials=capacity)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the monitor reports failed trials
    concurrent = concurrent_trials(machine, capacity, count)
    task = {
        "path": str(tuned.path),
        "tree": tuned.tree,
        "run": str(tuned.run),
        "store": str(store.root),
        "machine": replace(machine, parts=concurrent),
    }
    optuna = tuned.optuna()
    with open_tracker(table.folder, cluster, table.identity) as tracker:
        if count > 1:
            run_shared_steps(tuned, store, machine, tracker)
        baseline = ", the first of them with the config as it is" if not all(trial.point for trial in waiting) else ""
        print(f"{count} trial{'s' if count > 1 else ''}{baseline}, {concurrent} at a time", file=sys.stderr, flush=True)
        monitor = Monitor(tuned, table, store, tracker)
        with monitor.watching():
            run_trials(
                run_trial,
                task,
                table,
                tuned,
                draws=draws,
                draw=lambda: draw(optuna, table, tuning.space, tuning.seed),
                concurrent=concurrent,
                memory=driver_memory(),
                retries=cluster.retries,
                wait_seconds=cluster.wait_seconds,
                on_change=monitor.announce,
                on_wait=monitor.announce_wait,
            )


def _show(tuned: TunedExperiment, table: TrialTable, store: Store, then: Callable[[Path], str]) -> Path:
    """Print the table, and write the page and the best trial's config; StepFailed if no trial is done."""
    best = table.best
    if best is None:
        print(report.format_table(table))
        reason = next((trial.reason for trial in table.trials if trial.reason), "none reached the last system")
        raise StepFailed(f"no trial is done: {reason}")
    table.error = error(tuned, best, store)
    table.save()
    config = tuned.experiment(best.point).tree
    results_split = tuned.tree.get("evaluate", {}).get("split", EvaluateConfig().split)
    whole = loading.keep_experiments(config, tuned.path, table.best_config.parent)
    command = then(table.best_config)
    path = report.write_best(table, whole, tuned.path, results_split=results_split, then=command)
    page = report.write_page(
        table,
        title=tuned.path.stem,
        source=tuned.path,
        config=config,
        results_split=results_split,
        log_keys={name for name, values in tuned.tuning.space.items() if values.loguniform},
        then=command,
    )
    print(report.format_table(table))
    print(f"\nthe best:   {path}\nthe report: {page}\n")
    return path
