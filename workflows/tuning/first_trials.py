"""List the trials that are fixed before any trial runs, and the steps that measure them."""

import contextlib
from typing import Any

from sparring.workflows.store.dag import Step
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.search_space import Point, points


def fixed_trials(tuned: TunedExperiment) -> list[tuple[Point, dict[str, Any]]]:
    """List the points of the baseline and of the trials that are drawn at random, with the values to show for each.

    A random point that equals the baseline is left out. Optuna draws its points only while trials run.
    """
    tuning, baseline = tuned.tuning, config_values(tuned)
    trials: list[tuple[Point, dict[str, Any]]] = [({}, baseline)] if tuning.baseline else []
    if tuning.search == "random":
        sample = points(tuning.space, tuning.trials, tuning.seed)
        trials += [(point, point) for point in sample if not (tuning.baseline and point == baseline)]
    return trials


def fixed_steps(tuned: TunedExperiment) -> list[Step]:
    """List the steps that measure the fixed trials, and, if Optuna draws, each end of each range.

    UserError if the experiment does not accept a point.
    """
    tried = [point for point, _ in fixed_trials(tuned)]
    if tuned.tuning.search == "optuna":
        tried += [{name: end} for name, values in tuned.tuning.space.items() for end in values.ends]
    measured = [tuned.measure_steps(tuned.experiment(point)) for point in tried]
    return [step for trial in measured for steps in trial for step in steps]


def config_values(tuned: TunedExperiment) -> dict[str, Any]:
    """Read the values of the config at the names of the space.

    Names whose keys are not in the config, or have different values there, are left out.
    """
    tree, values_of = tuned.experiment({}).config.model_dump(mode="json"), {}
    for name, values in tuned.tuning.space.items():
        with contextlib.suppress(KeyError, IndexError, ValueError, TypeError):
            first, *rest = [_value(tree, key) for key in values.sets or [name]]
            if all(value == first for value in rest):
                values_of[name] = first
    return values_of


def _value(tree: Any, key: str) -> Any:
    """Read the value at a dotted key."""
    for part in key.split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree
