"""Optuna as the sampler of points: its TPE learns from the trials that are finished."""

from typing import Any

from sparring.components.rng import keyed_int
from sparring.workflows.tuning.search_space import Point, Range, Space, points
from sparring.workflows.tuning.trials import Trial, TrialTable


class Sampler:
    """An Optuna study through its ask-and-tell interface. The study lasts as long as this process; what lasts longer is
    the table of trials, from which a new study starts."""

    def __init__(self, optuna: Any, table: TrialTable, space: Space, *, goal: str, seed: int) -> None:
        self._optuna, self._table, self._space, self._seed = optuna, table, space, seed
        # The number of trials is in the seed, so that a study that resumes does not draw the same points again.
        key = keyed_int(seed, "optuna", len(table.trials)) % 2**32
        self._study = optuna.create_study(
            direction="maximize" if goal == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=key, constant_liar=True, multivariate=False),
        )
        self._distributions = {name: _distribution(optuna, values) for name, values in space.items()}
        self._asked: list[tuple[Point, Any]] = []
        for trial in table.trials:
            if trial.finished:
                self.tell(trial)

    def ask(self) -> Point:
        """Draw the next point. In the place of one that a trial has already, of whose outcome the study is told, the
        next one is random, as TPE would mostly say the same again; unless the space has no other."""
        point, asked = self._drawn()
        trials = self._table.trials
        if (same := next((trial for trial in trials if trial.values == point), None)) is not None:
            self._answer(asked, same)
            taken = [trial.values for trial in trials]
            others = [one for one in points(self._space, len(trials) + 1, self._seed) if one not in taken]
            self._study.enqueue_trial(self._params(others[0] if others else point))
            point, asked = self._drawn()
        self._asked.append((point, asked))
        return point

    def tell(self, trial: Trial) -> None:
        """Tell the study how a trial ended: its last measure, or that it was stopped or failed."""
        asked = next((one for point, one in self._asked if point == trial.point), None)
        if asked is not None:
            self._answer(asked, trial)
            self._asked = [(point, one) for point, one in self._asked if one is not asked]
            return
        state, value = self._outcome(trial)
        if all(name in trial.values and self._space[name].has(trial.values[name]) for name in self._space):
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    state=state,
                    params=self._params(trial.values),
                    distributions=self._distributions,
                    value=value,
                    intermediate_values=dict(enumerate(trial.measures)),
                )
            )

    def _drawn(self) -> tuple[Point, Any]:
        """A point that Optuna says, and its trial."""
        asked = self._study.ask(self._distributions)
        return {name: self._decoded(name, asked.params[name]) for name in self._space}, asked

    def _params(self, values: Point) -> dict[str, Any]:
        """Optuna's values for those of a point."""
        return {name: self._encoded(name, values[name]) for name in self._space}

    def _answer(self, asked: Any, trial: Trial) -> None:
        """Tell the study that a trial is the outcome of what it asked for."""
        state, value = self._outcome(trial)
        for number, measure in enumerate(trial.measures):
            asked.report(measure, number)
        self._study.tell(asked, value, state=state)

    def _outcome(self, trial: Trial) -> tuple[Any, float | None]:
        """Optuna's state of a trial, and its value."""
        states = self._optuna.trial.TrialState
        state = {"done": states.COMPLETE, "stopped": states.PRUNED}.get(trial.state, states.FAIL)
        return state, trial.measures[-1] if state is states.COMPLETE else None

    def _decoded(self, name: str, value: Any) -> Any:
        """The space's value for one of Optuna's. A choice is its index there, as Optuna takes no lists as values."""
        values = self._space[name]
        if values.choice is not None:
            return values.choice[value]
        return values.rounded(value) if values.integers is None else value

    def _encoded(self, name: str, value: Any) -> Any:
        """Optuna's value for one of the space's."""
        values = self._space[name]
        return values.choice.index(value) if values.choice is not None else value


def _distribution(optuna: Any, values: Range) -> Any:
    """Optuna's distribution for a range."""
    distributions = optuna.distributions
    if values.choice is not None:
        return distributions.CategoricalDistribution(list(range(len(values.choice))))
    assert values.bounds is not None
    low, high = values.bounds
    if values.integers is not None:
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=values.loguniform is not None)
