"""Draw points with Optuna, whose TPE learns from the finished trials.

Ray Tune's `OptunaSearch` resumes only from a pickle, repeats points, and takes a trial that ASHA stopped for a complete
one, with the measure of an earlier system.
"""

from typing import Any

from sparring.components.rng import keyed_int
from sparring.workflows.tuning.search_space import Point, Range, Space, points
from sparring.workflows.tuning.trials import Trial, TrialTable


def draw(optuna: Any, table: TrialTable, space: Space, seed: int) -> Point:
    """Sample a point that no trial of the table has, unless the space has no other.

    The point depends on the seed and the table alone, because the Optuna study is built from the table. So a resumed
    tuning samples what it would have sampled without the interruption.
    """
    optimizer = optuna.create_study(
        direction="maximize" if table.goal == "max" else "minimize",
        sampler=optuna.samplers.TPESampler(
            seed=keyed_int(seed, "optuna", len(table.trials)) % 2**32, constant_liar=True, multivariate=False
        ),
    )
    distributions = {name: _distribution(optuna, values) for name, values in space.items()}
    for trial in table.trials:
        if all(name in trial.values and space[name].has(trial.values[name]) for name in space):
            optimizer.add_trial(_frozen(optuna, trial, space, distributions))
    params = optimizer.ask(distributions).params
    point = {name: _decoded(values, params[name]) for name, values in space.items()}
    taken = [trial.values for trial in table.trials]
    if point in taken:  # TPE would mostly draw it again
        return next((fresh for fresh in points(space, len(taken) + 1, seed) if fresh not in taken), point)
    return point


def _frozen(optuna: Any, trial: Trial, space: Space, distributions: dict[str, Any]) -> Any:
    """Describe a trial to Optuna. A waiting trial counts as running."""
    states = optuna.trial.TrialState
    state = {"done": states.COMPLETE, "stopped": states.PRUNED, "failed": states.FAIL}.get(trial.state, states.RUNNING)
    return optuna.trial.create_trial(
        state=state,
        params={name: _encoded(values, trial.values[name]) for name, values in space.items()},
        distributions=distributions,
        value=trial.measures[-1] if state is states.COMPLETE else None,
        intermediate_values=dict(trial.rungs),
    )


def _distribution(optuna: Any, values: Range) -> Any:
    """Convert a range to Optuna's distribution. Optuna takes no lists as values, so a choice is its index."""
    distributions = optuna.distributions
    if values.choice is not None:
        return distributions.CategoricalDistribution(list(range(len(values.choice))))
    assert values.bounds is not None
    low, high = values.bounds
    if values.integers is not None:
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=values.loguniform is not None)


def _encoded(values: Range, value: Any) -> Any:
    """Convert a value of the space to Optuna's."""
    return values.choice.index(value) if values.choice is not None else value


def _decoded(values: Range, value: Any) -> Any:
    """Convert a value of Optuna's to the space's."""
    if values.choice is not None:
        return values.choice[value]
    return values.rounded(value) if values.integers is None else value
