"""The trials that are known before any runs, and what measures them."""

import contextlib
from typing import Any

from sparring.workflows.store.dag import Step
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.search_space import Point, points


def known_trials(tuned: TunedExperiment) -> list[tuple[Point, dict[str, Any]]]:
    """The points of the trials that no sampler draws while others run, with their values for a reader: the config as it
    is, and those drawn at random, without one that equals it."""
    tuning, own = tuned.tuning, own_values(tuned)
    known: list[tuple[Point, dict[str, Any]]] = [({}, own)] if tuning.baseline else []
    if tuning.search == "random":
        drawn = points(tuning.space, tuning.trials, tuning.seed)
        known += [(point, point) for point in drawn if not (tuning.baseline and point == own)]
    return known


def foreseen_steps(tuned: TunedExperiment) -> list[Step]:
    """What measures the trials that are known; where Optuna draws, also each end of each range on its own. UserError
    where the experiment does not accept one."""
    tried = [point for point, _ in known_trials(tuned)]
    if tuned.tuning.search == "optuna":
        tried += [{name: end} for name, values in tuned.tuning.space.items() for end in values.ends]
    measured = [tuned.measure_steps(tuned.experiment(point)) for point in tried]
    return [step for trial in measured for steps in trial for step in steps]


def own_values(tuned: TunedExperiment) -> dict[str, Any]:
    """The values in the config at the keys of the space, for those that are there; of several keys that a name sets,
    where all have the same."""
    tree, own = tuned.experiment({}).config.model_dump(mode="json"), {}
    for name, values in tuned.tuning.space.items():
        with contextlib.suppress(KeyError, IndexError, ValueError, TypeError):
            first, *others = [_value(tree, key) for key in values.sets or [name]]
            if all(other == first for other in others):
                own[name] = first
    return own


def _value(tree: Any, key: str) -> Any:
    """What lies at a dotted key."""
    for part in key.split("."):
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree
