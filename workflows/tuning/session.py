"""A session of Ray Tune on the table of trials: which trial is next, which is stopped, and what each reports.

Nothing that Tune keeps is read again. A trial that an earlier run of the command has finished starts once more in Tune,
but only to report at once the measures that the table has.
"""

import shutil
import warnings
from collections.abc import Callable
from typing import Any

from sparring.workflows.store.dag import StepFailed
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.halving import halving
from sparring.workflows.tuning.sampler import Sampler
from sparring.workflows.tuning.trials import State, Trial, TrialTable


def run_trials(
    function: Callable[..., None],
    task: dict[str, Any],
    table: TrialTable,
    tuned: TunedExperiment,
    *,
    draws: int,
    sampler: Sampler | None,
    concurrent: int,
    retries: int,
    on_change: Callable[[Trial], None],
) -> None:
    """Run the trials of the table that are not finished, and `draws` more from the sampler, so many at a time.

    A trial is `function(about, task)` in a process of its own; `on_change` gets it after each measure and at its end.
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    tuning = tuned.tuning
    # ASHA compares trials with the finished ones, so it must know these first.
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
            search_alg=_searcher(tuned, table, queue, sampler),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder),
            verbose=0,
            callbacks=[_callback(table, sampler, on_change)],
            failure_config=tune.FailureConfig(max_failures=retries),
        ),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Tune warns about options that it has set itself
            tuner.fit()
    except Exception as error:  # of Ray's own: an error in a trial is that trial's
        raise StepFailed(
            f"Ray Tune ended before its trials: {(str(error).splitlines() or [repr(error)])[-1]}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _searcher(tuned: TunedExperiment, table: TrialTable, queue: list[Trial], sampler: Sampler | None) -> Any:
    """What Tune asks for the next trial: first those of the queue, then drawn ones."""
    from ray.tune.search import Searcher

    class Queue(Searcher):
        def __init__(self) -> None:
            super().__init__(metric="value", mode=table.goal)
            self.taken = 0

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            if self.taken == len(queue):
                assert sampler is not None
                point = sampler.ask()
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
            """Nothing to do: the callback below gets more."""

        def __reduce__(self) -> Any:
            return _placeholder()

        def save(self, checkpoint_path: str) -> None:
            """Nothing to do: the table keeps everything."""

        def restore(self, checkpoint_path: str) -> None:
            """Never called."""

    return Queue()


def _callback(table: TrialTable, sampler: Sampler | None, on_change: Callable[[Trial], None]) -> Any:
    """What Tune calls with news of trials; it writes them into the table."""
    from ray import tune

    class Recorder(tune.Callback):
        def __reduce__(self) -> Any:
            return _placeholder()

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            if not trial.config["finished"]:
                self._own(trial).state = "running"
                table.save()

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if trial.config["finished"]:
                return
            own = self._own(trial)
            own.seconds = round(result.get("seconds", own.seconds), 2)
            own.steps = result.get("steps", own.steps)
            if "failed" in result:
                self._end(own, "failed", result["failed"])
            elif "value" in result and result["systems"] > len(own.measures):
                own.measures.append(result["value"])
                if len(own.measures) == len(table.systems):
                    self._end(own, "done")
                else:
                    on_change(own)
                    table.save()

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            own = self._own(trial)
            if own.state == "running":
                self._end(own, "stopped")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            own = self._own(trial)
            if not own.finished:
                lines = str(trial.get_error() or "").strip().splitlines()
                self._end(own, "failed", lines[-1] if lines else "its process died")

        def _own(self, trial: Any) -> Trial:
            """The table's trial for one of Tune's."""
            return table.trials[trial.config["number"]]

        def _end(self, own: Trial, state: State, reason: str = "") -> None:
            own.state, own.reason = state, reason
            if sampler is not None:
                sampler.tell(own)
            on_change(own)
            table.save()

    return Recorder()


def _placeholder() -> Any:
    """What Tune's own copies on disk have in the place of an object that holds the table: nobody reads them."""
    return object, ()
