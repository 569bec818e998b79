"""Ray Tune at work on a book of trials: what is tried next, what is stopped, and what each came to.

Tune keeps nothing that is looked at again: of an earlier run of the same tuning it is told by trials that report at
once what is known of them.
"""

import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

from components.search_space import Space
from workflows.store import StepFailed
from workflows.trials import Book, Trial


def run_trials(
    function: Callable[..., None], task: dict[str, Any], book: Book, *, draws: int, space: Space, goal: str,
    asha: int | None, optuna: Any, seed: int, among: int, retries: int, says: Callable[[Trial], None],
) -> None:  # fmt: skip
    """Run the book's trials that are not final and so many draws more, `among` at a time, as `function(about, task)`.

    `asha` is the number of trials of which one goes on, `optuna` the module or None.
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    from workflows.tune_optuna import Sampler

    study = Sampler(optuna, book, space, goal=goal, seed=seed) if optuna is not None else None
    # What a scheduler has to know of before it judges others.
    again = [trial for trial in book.trials if trial.final and asha is not None]
    queue = [*again, *(trial for trial in book.trials if not trial.final)]
    count = len(queue) + draws
    folder = (book.folder / "ray").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    scheduler = (
        FIFOScheduler()
        if asha is None
        else ASHAScheduler(time_attr="systems", max_t=max(2, len(book.systems)), reduction_factor=asha)
    )
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(function, task=task), {"CPU": 0.01}),
        tune_config=tune.TuneConfig(
            metric="value", mode=goal, scheduler=scheduler, num_samples=count, max_concurrent_trials=among,
            search_alg=_searcher(book, queue, study), reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="trials", storage_path=str(folder), verbose=0, callbacks=[_callback(book, study, says)],
            failure_config=tune.FailureConfig(max_failures=retries),
        ),
    )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Tune's are about options that it sets itself
            tuner.fit()
    except Exception as error:  # of Ray's own: what goes wrong in a trial is a line of the book
        raise StepFailed(f"Ray Tune ended before its trials: {next(iter(str(error).splitlines()), error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _searcher(book: Book, queue: list[Trial], study: Any) -> Any:
    """What tells Tune which trial is next."""
    from ray.tune.search import Searcher

    class Next(Searcher):
        def __init__(self) -> None:
            super().__init__(metric="value", mode=book.goal)
            self.taken = 0

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            if self.taken == len(queue):
                point = study.ask()
                queue.append(Trial(len(book.trials), point, point))
                book.trials.append(queue[-1])
            trial = queue[self.taken]
            self.taken += 1
            return {
                "number": trial.number, "point": trial.point, "measures": list(trial.measures),
                "seconds": trial.seconds, "steps": trial.steps, "final": trial.final,
            }  # fmt: skip

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """The callback below hears more."""

        def __reduce__(self) -> Any:
            return _no_copy()

        def save(self, checkpoint_path: str) -> None:
            """There is nothing to keep: the book has all."""

        def restore(self, checkpoint_path: str) -> None:
            """Never asked for."""

    return Next()


def _callback(book: Book, study: Any, says: Callable[[Trial], None]) -> Any:
    """What writes into the book what Tune hears."""
    from ray import tune

    class Written(tune.Callback):
        def __reduce__(self) -> Any:
            return _no_copy()

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            one = book.trials[trial.config["number"]]
            if not trial.config["final"]:
                one.state = "running"

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            one = book.trials[trial.config["number"]]
            if trial.config["final"]:
                return
            one.seconds = round(result.get("seconds", one.seconds), 2)
            one.steps = result.get("steps", one.steps)
            if "failed" in result:
                self._end(one, "failed", result["failed"])
            elif "value" in result and result["systems"] > len(one.measures):
                one.measures.append(result["value"])
                if len(one.measures) == len(book.systems):
                    self._end(one, "done")
                else:
                    says(one)
                    book.save()

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            one = book.trials[trial.config["number"]]
            if one.state == "running":
                self._end(one, "stopped")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            one = book.trials[trial.config["number"]]
            if not one.final:
                said = str(trial.get_error() or "").strip().splitlines()
                self._end(one, "failed", said[-1] if said else "its process died")

        def _end(self, one: Trial, state: Any, reason: str = "") -> None:
            one.state, one.reason = state, reason
            if study is not None:
                study.tell(one)
            says(one)
            book.save()

    return Written()


def _no_copy() -> Any:
    """What stands in Tune's own copies for what writes into the book: nobody reads them."""
    return object, ()


def announce(line: str) -> None:
    """Print a line above whatever is drawn over and over."""
    print(f"\r\033[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
