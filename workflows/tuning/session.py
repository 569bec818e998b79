"""Run trials in a session of Ray Tune, whose ASHA stops trials that are behind.

The table keeps all that must last; nothing that Tune saves is read again. A trial that an earlier run of the command
has finished starts again in Tune, only to report the measures of the table at once.
"""

import shutil
import warnings
from collections.abc import Callable
from typing import Any

from sparring.workflows.store.dag import StepFailed
from sparring.workflows.tuning.config import TunedExperiment
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
    retries: int,
    on_change: Callable[[Trial], None],
) -> None:
    """Run the unfinished trials of the table, and then `draws` more with points from `draw`, `concurrent` at a time.

    Each trial calls `function(trial, task)` in a process. `on_change` gets a trial after each measure and at its end.
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    tuning = tuned.tuning
    # ASHA compares trials with the finished ones, so it must see these first.
    finished = [trial for trial in table.trials if trial.finished and tuning.scheduler == "asha"]
    queue = [*finished, *(trial for trial in table.trials if not trial.finished)]
    folder = (table.folder / "ray").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    scheduler = (
        ASHAScheduler(**halving(len(table.systems), tuning.reduction_factor))
        if tuning.scheduler == "asha"
        else FIFOScheduler()
    )
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(function, task=task), {"CPU": 0.01}),
        tune_config=tune.TuneConfig(
            metric="value",
            mode=tuning.goal,
            scheduler=scheduler,
            num_samples=len(queue) + draws,
            max_concurrent_trials=concurrent,
            search_alg=_searcher(tuned, table, queue, draw),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder),
            verbose=0,
            callbacks=[_callback(table, on_change)],
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


def halving(systems: int, factor: int) -> dict[str, Any]:
    """Choose the arguments of an ASHA that compares trials after each system but the last.

    ASHA compares trials when their time is a power of the factor. `time_of` a system is one, and the time of a trial is
    over after its last system.
    """
    return {"time_attr": "time", "max_t": 0.75 * time_of(max(2, systems), factor), "reduction_factor": factor}


def time_of(system: int, factor: int) -> int:
    """Compute the time, in ASHA's sense, at which a trial reaches its n-th system, counted from 1."""
    return int(factor ** (system - 1))


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
                "measures": list(trial.measures),
                "seconds": trial.seconds,
                "steps": trial.steps,
                "finished": trial.finished,
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


def _callback(table: TrialTable, on_change: Callable[[Trial], None]) -> Any:
    """Build the callback that writes what trials report into the table."""
    from ray import tune

    class Recorder(tune.Callback):
        def __reduce__(self) -> Any:
            return _placeholder()

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if not trial.config["finished"]:
                self._row(trial).state = "running"
                table.save()

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if trial.config["finished"]:
                return
            row = self._row(trial)
            row.seconds = round(result.get("seconds", row.seconds), 2)
            row.steps = result.get("steps", row.steps)
            if "failed" in result:
                self._end(row, "failed", result["failed"])
            elif "value" in result and result["systems"] > len(row.measures):
                row.measures.append(result["value"])
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
