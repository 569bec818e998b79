"""Run trials: first the steps that all trials share, then the steps of each trial."""

import io
import sys
import time
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import numpy as np

from sparring.components.config import UserError, parse
from sparring.components.data.tables import read
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE
from sparring.components.evaluation.selection import standard_error
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.resources import end_warm
from sparring.workflows.running.executor import execute
from sparring.workflows.running.refusals import select_shared_checks
from sparring.workflows.running.runner import run_steps
from sparring.workflows.running.tracking import Tracker
from sparring.workflows.store import object_store
from sparring.workflows.store.dag import Step, StepFailed, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import TunedExperiment, Tuning
from sparring.workflows.tuning.rungs import Rung, list_rungs, read_validations, validated
from sparring.workflows.tuning.search_space import Point
from sparring.workflows.tuning.session import time_of
from sparring.workflows.tuning.trials import Trial

POLL_SECONDS = 1.0
"""Seconds between two looks at what a running trial has reached."""


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
    end_warm()  # this driver's workers, whose processors the trials need


def run_trial(trial: dict[str, Any], *, task: dict[str, Any]) -> None:
    """Run a trial in a process of Ray Tune: the steps of each system in turn; report each rung that it reaches.

    `trial` describes the trial, and `task` what all trials share. The steps run in another process (`TrialSteps`). This
    one reads from the store what the trial has reached. So a trial that is resumed, or whose steps another trial runs,
    reports the same values, and Tune can stop a trial in the middle of a training.
    """
    import ray
    from ray.tune import report

    tuned, store = _tuned(task), object_store.open_store(Path(task["store"]))
    spent = {"seconds": trial["seconds"], "steps": trial["steps"]}
    point, factor = trial["point"], tuned.tuning.reduction_factor
    numbers = {rung: number for number, rung in enumerate(list_rungs(tuned, {}))}
    running: Any = None

    def reach(rung: Rung, value: float, **more: Any) -> None:
        if rung in numbers:  # a longer training than the baseline's has further validations
            number = numbers.pop(rung)
            report({"rung": number, "time": time_of(number + 1, factor), "value": value, **more, **spent})

    def reach_validations(steps: list[Step]) -> None:
        for node in validated(steps):
            values = read_validations(node, store, tuned.tuning.goal)
            for rung in [rung for rung in numbers if rung.training == node.label and rung.validation <= len(values)]:
                reach(rung, values[rung.validation - 1])

    try:
        systems = tuned.measure_steps(tuned.experiment(point))
        for number, steps in enumerate(systems, 1):
            if pending(steps, store):
                runner, before = _runner(task), dict(spent)
                began = ray.get(runner.progress.remote())
                running = runner.reach.options(name=f"trial {trial['number']}").remote(point, number - 1)
                done = False
                while not done:
                    done = bool(ray.wait([running], timeout=POLL_SECONDS)[0])
                    seconds, count, waits = ray.get(runner.progress.remote())
                    spent["seconds"] = before["seconds"] + seconds - began[0]
                    spent["steps"] = before["steps"] + count - began[1]
                    for line in waits:
                        report({"waiting": line, **spent})
                    reach_validations(steps)
                failure, running = ray.get(running), None
                if failure:
                    report({"failed": failure, **spent})
                    return
                store = object_store.open_store(Path(task["store"]))  # which reads the new records
            reach_validations(steps)
            measure = _measure(tuned, steps, store)
            reach(Rung(number), measure, systems=number, measure=measure)
    except UserError as error:
        report({"failed": str(error), **spent})
    except SystemExit:  # Tune has stopped the trial
        if running is not None:
            _kill_runner()
        raise


class TrialSteps:
    """The process that runs the steps of trials, one trial after another, as a driver of its own.

    Ray Tune places a trial in a placement group, which would hold everything that the trial asks Ray for. The steps ask
    for more, and each for something else, so they run outside of it. A trial that is stopped has its process killed,
    and with it, by Ray, all that its steps have started.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._tuned, self._machine = _tuned(task), task["machine"]
        self._store = object_store.open_store(Path(task["store"]))
        self._seconds, self._steps, self._since, self._waits = 0.0, 0, 0.0, Waits(sys.stderr)
        sys.stderr = self._waits

    def reach(self, point: Point, system: int) -> str:
        """Run the steps of one of a point's systems. Return why it failed, or ""."""
        try:
            for node in pending(self._tuned.measure_steps(self._tuned.experiment(point))[system], self._store):
                try:
                    self._steps += execute(
                        node, self._store, self._machine, on_wait=lambda _: None, on_start=self._start
                    )
                finally:
                    self._seconds, self._since = self._elapsed(), 0.0
                if self._machine.cuda or self._machine.cluster.address:
                    end_warm()  # idle processes hold processors that another trial may wait for
        except (StepFailed, UserError) as error:
            return str(error)
        return ""

    def _start(self) -> None:
        self._since = time.monotonic()

    def _elapsed(self) -> float:
        return self._seconds + (time.monotonic() - self._since if self._since else 0.0)

    def progress(self) -> tuple[float, int, list[str]]:
        """Return the seconds and the number of all steps so far, and what they have waited for since the last call."""
        waits, self._waits.lines = self._waits.lines, []
        return self._elapsed(), self._steps, waits


class Waits(io.TextIOBase):
    """A stderr that keeps the lines in which a step says what it waits for."""

    def __init__(self, stderr: TextIO) -> None:
        self.lines: list[str] = []
        self._stderr = stderr

    def write(self, text: str) -> int:
        """Write a text, and keep it if it is such a line."""
        if text.startswith("waiting for "):
            self.lines.append(text.strip())
        return self._stderr.write(text)

    def flush(self) -> None:
        """Flush what was written."""
        self._stderr.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the stderr."""
        return self._stderr.fileno()


_runners: list[Any] = []
"""The process that runs the steps of this process's trials, if there is one. It stays from one trial to the next."""


def _runner(task: dict[str, Any]) -> Any:
    """Return the process that runs the steps, on this node. Start it if there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not _runners:
        # With this strategy the process is outside of the trial's placement group.
        strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_concurrency=2, scheduling_strategy=strategy)(TrialSteps)
        _runners.append(actor.remote(task))
    return _runners[0]


def _kill_runner() -> None:
    """Kill the process that runs the steps, and with it the workers that it has started."""
    import ray

    for runner in _runners:
        ray.kill(runner)
    _runners.clear()


def _tuned(task: dict[str, Any]) -> TunedExperiment:
    """Build the tuned experiment from what all trials share."""
    tuning = parse(Tuning, task["tree"]["tune"], where=task["path"])
    return TunedExperiment(Path(task["path"]), task["tree"], Path(task["run"]), tuning)


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
