"""Run trials in a session of Ray Tune, whose schedulers stop trials that are behind.

The table keeps all that must last; nothing that Tune saves is read again. The trials that an earlier run of the command
has finished are not run: the scheduler is told what the table has of them.

A trial asks Ray for the memory of its own processes and for no CPU: they plan and wait. Its steps ask for the
processors of their workers, each for what it uses, when they run. So a trial that waits, or runs a step that needs
little, keeps nothing from the others, and no trial holds a part of what it needs while it waits for the rest. A
placement group for all steps of a trial would hold its GPUs while it builds an index, and Ray Train takes none: it
makes its own. The number of trials at once comes from what is free (`capacity`).
"""

import shutil
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparring.components.rng import keyed_rng
from sparring.workflows.distributed import nodes
from sparring.workflows.store.dag import StepFailed
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.rungs import list_rungs
from sparring.workflows.tuning.search_space import Point
from sparring.workflows.tuning.trials import State, Trial, TrialTable


def run_trials(
    function: Callable[..., None],
    task: dict[str, Any],
    table: TrialTable,
    tuned: TunedExperiment,
    *,
    draws: int,
    draw: Callable[[], Point],
    concurrent: int,
    memory: float,
    retries: int,
    wait_seconds: float,
    on_change: Callable[[Trial], None],
    on_wait: Callable[[Trial, str], None],
) -> None:
    """Run the unfinished trials of the table, and then `draws` more with points from `draw`, `concurrent` at a time.

    Each trial calls `function(trial, task)` in a process that asks for `memory` bytes. `on_change` gets a trial after
    each measure and at its end, and `on_wait` what one of its steps waits for. StepFailed if no trial could start for
    `wait_seconds`.
    """
    from ray import tune

    queue = [trial for trial in table.trials if not trial.finished]
    folder = (table.folder / "ray").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(function, task=task), {"memory": memory}),
        tune_config=tune.TuneConfig(
            scheduler=make_scheduler(table, tuned),
            num_samples=len(queue) + draws,
            max_concurrent_trials=concurrent,
            search_alg=_searcher(tuned, table, queue, draw),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder),
            verbose=0,
            callbacks=[_callback(table, on_change, on_wait, Start(memory, wait_seconds))],
            failure_config=tune.FailureConfig(max_failures=retries),
        ),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Tune warns about options that it has set itself
            tuner.fit()
    except Exception as error:  # an error of Ray itself: errors in a trial are recorded with it
        raise StepFailed(
            f"Ray Tune ended before its trials: {(str(error).splitlines() or [repr(error)])[-1]}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Start:
    """The wait of trials of which none has started because no node has memory for one."""

    def __init__(self, memory: float, wait_seconds: float) -> None:
        self._memory, self._seconds, self._since, self._announced = memory, wait_seconds, 0.0, False

    def check(self, trials: list[Any]) -> None:
        """Say what trials wait for. RuntimeError if the wait takes too long."""
        states = {trial.status for trial in trials}
        if "RUNNING" in states or "PENDING" not in states or not self._no_room():
            self._since = 0.0
            return
        now = time.monotonic()
        self._since = self._since or now
        wanted = f"{self._memory / 2**30:.1f} GiB of memory"
        if now - self._since > self._seconds:
            raise RuntimeError(
                f"no node had {wanted} free for a trial within {self._seconds:.0f} s (wait_seconds in the profile). "
                "Repeat the command when the other work is done."
            )
        if now - self._since > min(nodes.SAY_SECONDS, self._seconds) and not self._announced:
            self._announced = True
            print(
                f"waiting for {wanted} of one node, at most {self._seconds:.0f} s (wait_seconds in the profile): other "
                "work on the cluster holds it",
                file=sys.stderr,
                flush=True,
            )

    def _no_room(self) -> bool:
        """Check whether Ray has a place for no trial. A trial that has one may still be starting its process."""
        from ray.util import placement_group_table

        groups = [
            group for group in placement_group_table().values() if group["bundles"] == {0: {"memory": self._memory}}
        ]
        return bool(groups) and not any(group["state"] == "CREATED" for group in groups)


def make_scheduler(table: TrialTable, tuned: TunedExperiment) -> Any:
    """Build the scheduler, and tell it how the finished trials of the table have done.

    A trial's bracket depends on the tuning's seed and the trial's number alone, so that a resumed tuning stops the
    trials that it would have stopped without the interruption.
    """
    from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

    class Halving(AsyncHyperBandScheduler):
        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            """Choose a bracket as Ray does, but by a keyed random number."""
            sizes = np.array([len(bracket._rungs) for bracket in self._brackets])
            weights = np.exp(sizes - sizes.max())
            rng = keyed_rng(tuning.seed, "bracket", trial.config["number"])
            self._trial_info[trial.trial_id] = self._brackets[rng.choice(len(sizes), p=weights / weights.sum())]

    tuning = tuned.tuning
    if tuning.scheduler == "fifo":
        return FIFOScheduler()
    rungs, factor = len(list_rungs(tuned, {})), tuning.reduction_factor
    brackets = 1 if tuning.scheduler == "asha" else rungs
    scheduler = Halving(metric="value", mode=tuning.goal, brackets=brackets, **halving(rungs, factor))
    for trial in [trial for trial in table.trials if trial.finished]:
        earlier = SimpleNamespace(trial_id=f"earlier {trial.number}", config={"number": trial.number})
        scheduler.on_trial_add(None, earlier)
        for rung, value in trial.rungs:
            scheduler.on_trial_result(None, earlier, {"time": time_of(rung + 1, factor), "value": value})
    return scheduler


def halving(rungs: int, factor: int) -> dict[str, Any]:
    """Choose the arguments of a scheduler that compares trials at each rung but the last.

    It compares trials when their time is a power of the factor. `time_of` a rung is one, and the time of a trial is
    over at its last rung.
    """
    return {"time_attr": "time", "max_t": 0.75 * time_of(max(2, rungs), factor), "reduction_factor": factor}


def time_of(rung: int, factor: int) -> int:
    """Compute the time, in the scheduler's sense, at which a trial reaches its n-th rung, counted from 1."""
    return int(factor ** (rung - 1))


def _searcher(tuned: TunedExperiment, table: TrialTable, queue: list[Trial], draw: Callable[[], Point]) -> Any:
    """Build the searcher that gives Tune the trials of the queue, and then drawn ones."""
    from ray.tune.search import Searcher

    class Queue(Searcher):
        def __init__(self) -> None:
            super().__init__(metric="value", mode=table.goal)
            self.taken = 0

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            if self.taken == len(queue):
                point = draw()
                queue.append(Trial(len(table.trials), point, point, artifacts=tuned.artifacts(point)))
                table.trials.append(queue[-1])
            trial = queue[self.taken]
            self.taken += 1
            return {
                "number": trial.number,
                "point": trial.point,
                "seconds": trial.seconds,
                "steps": trial.steps,
            }

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """Do nothing: the callback below gets more."""

        def __reduce__(self) -> Any:
            return _placeholder()

        def save(self, checkpoint_path: str) -> None:
            """Do nothing: the table keeps everything."""

        def restore(self, checkpoint_path: str) -> None:
            """Do nothing: it is never called."""

    return Queue()


def _callback(
    table: TrialTable, on_change: Callable[[Trial], None], on_wait: Callable[[Trial, str], None], start: Start
) -> Any:
    """Build the callback that writes what trials report into the table."""
    from ray import tune

    class Recorder(tune.Callback):
        def __reduce__(self) -> Any:
            return _placeholder()

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            start.check(trials)

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self._row(trial).state = "running"
            table.save()

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            row = self._row(trial)
            row.seconds = round(result.get("seconds", row.seconds), 2)
            row.steps = result.get("steps", row.steps)
            if "rung" in result and result["rung"] not in dict(row.rungs):  # a trial that is retried reports again
                row.rungs.append((result["rung"], result["value"]))
            if "waiting" in result:
                on_wait(row, result["waiting"])
            elif "failed" in result:
                self._end(row, "failed", result["failed"])
            elif "measure" in result and result["systems"] > len(row.measures):
                row.measures.append(result["measure"])
                if len(row.measures) == len(table.systems):
                    self._end(row, "done")
                else:
                    on_change(row)
                    table.save()

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            row = self._row(trial)
            if row.state == "running":
                self._end(row, "stopped")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            row = self._row(trial)
            if not row.finished:
                lines = str(trial.get_error() or "").strip().splitlines()
                self._end(row, "failed", lines[-1] if lines else "its process died")

        def _row(self, trial: Any) -> Trial:
            """Find the table's trial for one of Tune's."""
            return table.trials[trial.config["number"]]

        def _end(self, row: Trial, state: State, reason: str = "") -> None:
            row.state, row.reason = state, reason
            on_change(row)
            table.save()

    return Recorder()


def _placeholder() -> Any:
    """Stand for an object that holds the table in the copies that Tune saves. Nobody reads them."""
    return object, ()
