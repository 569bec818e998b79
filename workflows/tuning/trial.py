"""Run trials: first the steps that all trials share, then the steps of each trial."""

import sys
import time
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sparring.components.config import UserError, parse
from sparring.components.data.tables import read
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE
from sparring.components.evaluation.selection import standard_error
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.resources import end_warm
from sparring.workflows.distributed.worker_group import shut_down
from sparring.workflows.running.executor import execute
from sparring.workflows.running.refusals import select_shared_checks
from sparring.workflows.running.runner import run_steps
from sparring.workflows.running.tracking import Tracker
from sparring.workflows.store import object_store
from sparring.workflows.store.dag import Step, StepFailed, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import TunedExperiment, Tuning
from sparring.workflows.tuning.session import time_of
from sparring.workflows.tuning.trials import Trial


def run_shared_steps(tuned: TunedExperiment, store: Store, machine: Machine, tracker: Tracker) -> None:
    """Run the steps that no key of the space changes on all processors, before the trials start."""
    space = tuned.tuning.space
    corners = [{name: values.ends[end] for name, values in space.items()} for end in (0, -1)]
    try:
        wanted = [_flat(tuned.measure_steps(tuned.experiment(point))) for point in ({}, *corners)]
    except UserError:
        return  # the experiment does not accept two ends together; the first trial that needs a shared step runs it
    graphs = [graph(steps) for steps in wanted]
    shared = set.intersection(*({node.fingerprint for node in nodes} for nodes in graphs))
    waiting = [node for node in pending(wanted[0], store) if node.fingerprint in shared]
    if waiting:
        count = f"{len(waiting)} step{'s' if len(waiting) > 1 else ''}"
        print(f"first what all trials have in common: {count}", file=sys.stderr, flush=True)
        later = [node for node in select_shared_checks(*graphs) if node.fingerprint not in shared]
        run_steps(waiting, store, machine, tracker, later=later)
    shut_down()  # this driver's workers, whose processors the trials need
    end_warm()


def run_trial(trial: dict[str, Any], *, task: dict[str, Any]) -> None:
    """Run a trial in a process of Ray Tune: the steps of each system in turn; report each measure.

    `trial` describes the trial, and `task` what all trials share.
    """
    from ray.tune import report

    tuning = parse(Tuning, task["tree"]["tune"], where=task["path"])
    tuned = TunedExperiment(Path(task["path"]), task["tree"], Path(task["run"]), tuning)
    store = object_store.open_store(Path(task["store"]))
    spent = {"seconds": trial["seconds"], "steps": trial["steps"]}

    def reach(number: int, value: float) -> None:
        reached = time_of(number, tuning.reduction_factor)
        report({"systems": number, "time": reached, "value": value, **spent})

    for number, value in enumerate(trial["measures"], 1):  # from an earlier run of the command
        reach(number, value)
    if trial["finished"]:
        return
    measured = len(trial["measures"])
    try:
        systems = tuned.measure_steps(tuned.experiment(trial["point"]))
        for number, steps in enumerate(systems[measured:], measured + 1):
            for node in pending(steps, store):
                began = time.monotonic()
                if execute(node, store, task["machine"], on_wait=lambda _: None):
                    spent["seconds"] += time.monotonic() - began
                    spent["steps"] += 1
            reach(number, _measure(tuned, steps, store))
    except (StepFailed, UserError) as error:
        report({"failed": str(error), **spent})


def _measure(tuned: TunedExperiment, steps: list[Step], store: Store) -> float:
    """Average the measure of a system over its seeds."""
    records = [store.record(node) for node in steps]
    return fmean(record["summary"]["measures"][tuned.tuning.measure] for record in records if record is not None)


def measures(tuned: TunedExperiment, trial: Trial, store: Store) -> list[float]:
    """Read the measures of the systems that a trial has reached, in order, up to the first that the store lacks."""
    reached = tuned.measure_steps(tuned.experiment(trial.point))[: len(trial.measures)]
    stored = takewhile(lambda steps: all(store.is_done(node) for node in steps), reached)
    return [_measure(tuned, steps, store) for steps in stored]


def error(tuned: TunedExperiment, trial: Trial, store: Store) -> float | None:
    """Compute the standard error over the queries of a trial's last measure. Return None if the store does not keep the
    values of each query."""
    steps = tuned.measure_steps(tuned.experiment(trial.point))[-1]
    store.fetch(steps, PER_QUERY_FILE)
    files = [store.path(node) / PER_QUERY_FILE for node in steps]
    if not all(file.is_file() for file in files):
        return None
    measure = [("measure", "=", tuned.tuning.measure)]
    seeds = [read(file, PER_QUERY, columns=["value"], filters=measure)["value"].to_numpy() for file in files]
    return standard_error(np.mean(seeds, axis=0))


def _flat(steps: list[list[Step]]) -> list[Step]:
    return [step for seeds in steps for step in seeds]
