"""Optuna as what draws the next point of a space: its TPE learns from the trials that are finished."""

from typing import Any

from components import draws
from components.search_space import Point, Range, Space
from workflows.trials import Book, Trial


class Sampler:
    """Optuna's study of a book of trials, asked and told by hand. The book is what lasts, not the study."""

    def __init__(self, optuna: Any, book: Book, space: Space, *, goal: str, seed: int) -> None:
        self._optuna, self._space = optuna, space
        # Another draw each time that it goes on: what it had drawn is in the book.
        key = draws.number(seed, "optuna", len(book.trials)) % 2**32
        self._study = optuna.create_study(
            direction="maximize" if goal == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=key, constant_liar=True, multivariate=False),
        )
        self._distributions = {name: _distribution(optuna, values) for name, values in space.items()}
        self._asked: list[tuple[Point, Any]] = []
        for trial in book.trials:
            if trial.final:
                self.tell(trial)

    def ask(self) -> Point:
        """The next point."""
        asked = self._study.ask(self._distributions)
        point = {name: self._value(name, value) for name, value in asked.params.items()}
        self._asked.append((point, asked))
        return {name: point[name] for name in self._space}

    def tell(self, trial: Trial) -> None:
        """What came of a trial: its last measure, or that it was stopped or failed before."""
        states = self._optuna.trial.TrialState
        state = {"done": states.COMPLETE, "stopped": states.PRUNED}.get(trial.state, states.FAIL)
        asked = next((one for point, one in self._asked if point == trial.point), None)
        if asked is not None:
            for place, value in enumerate(trial.measures):
                asked.report(value, place)
            self._study.tell(asked, trial.measures[-1] if state is states.COMPLETE else None, state=state)
            self._asked = [(point, one) for point, one in self._asked if one is not asked]
            return
        if all(name in trial.shown and self._space[name].has(trial.shown[name]) for name in self._space):
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    state=state, params={name: self._coded(name, trial.shown[name]) for name in self._space},
                    distributions=self._distributions, value=trial.measures[-1] if state is states.COMPLETE else None,
                    intermediate_values=dict(enumerate(trial.measures)),
                )
            )  # fmt: skip

    def _value(self, name: str, value: Any) -> Any:
        """A value as the space has it. Optuna knows choices by their place: a list is nothing that it takes."""
        values = self._space[name]
        if values.choice is not None:
            return values.choice[value]
        return values.rounded(value) if values.integers is None else value

    def _coded(self, name: str, value: Any) -> Any:
        values = self._space[name]
        return values.choice.index(value) if values.choice is not None else value


def _distribution(optuna: Any, values: Range) -> Any:
    """A range as Optuna has it."""
    kinds = optuna.distributions
    if values.choice is not None:
        return kinds.CategoricalDistribution(list(range(len(values.choice))))
    assert values.bounds is not None
    low, high = values.bounds
    if values.integers is not None:
        return kinds.IntDistribution(low, high)
    return kinds.FloatDistribution(low, high, log=values.loguniform is not None)
