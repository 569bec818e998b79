"""The step that trains a model. Everything that the graph shows is checked first, so that a mistake is reported before
anything runs."""

from collections.abc import Mapping
from typing import Any

from sparring.components.objectives.parts.compatibility import check_training
from sparring.components.training.config import TrainConfig
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import Step, step

OF_ALL = {"objective", "config", "rows", "dev", "data", "tokens", "start", "seed", "part"}
"""Inputs of every training. Its objective takes the rest."""


def learnt(
    label: str,
    objective: str,
    config: TrainConfig,
    *,
    rows: Step,
    data: Step,
    tokens: Step,
    start: Step,
    dev: Step | None = None,
    taught: bool = False,
    dev_taught: bool = False,
    dimensions: int | None = None,
    **inputs: Any,
) -> Step:
    """Return the step `train`. `taught`, `dev_taught` and `dimensions` are as for `check_training`. ValueError if
    the model could not be trained so."""
    check_training(objective, config, label, taught=taught, dev_taught=dev_taught, dimensions=dimensions)
    look = config.validate_on_dev
    if look is not None and look.split == "train" and "rated" not in inputs:  # pairs are not what is learnt from
        raise ValueError(
            f"{label}: validate_on_dev: split: 'train' is what is learnt from; accepted: another, such as "
            "one that `data.hold_out` makes"
        )
    if look is not None and dev is None:
        raise ValueError(f"{label}: validate_on_dev: no documents are held out from it; accepted: null")
    if config.carry == "all":
        _check_carried(label, objective, config, start, inputs)
    return step(
        label,
        train,
        objective=objective,
        rows=rows,
        dev=dev,
        data=data,
        tokens=tokens,
        start=start,
        config=config,
        **inputs,
    )


def _check_carried(label: str, objective: str, config: TrainConfig, start: Step, inputs: Mapping[str, Any]) -> None:
    """Raise ValueError if the start keeps no optimizer, or that of another model, or if the schedule is over."""
    if start.description.models != "training" or not start.inputs["config"].chained:
        raise ValueError(
            f"{label}: carry: all: {start.label!r} keeps no optimizer; accepted: weights, or a start from a training "
            "that carries all too or has `schedule_updates`"
        )
    state = _optimized(objective, config, inputs)
    carried = _optimized(start.inputs["objective"], start.inputs["config"], start.inputs)
    if state != carried:
        raise ValueError(
            f"{label}: carry: all: the optimizer of {start.label!r} is of {carried}, and this training's of {state}; "
            "accepted: weights, or the same for both"
        )
    total, whole = _made(start) + config.updates, config.schedule_updates or config.updates
    if config.schedule == "linear" and total > whole:
        raise ValueError(
            f"{label}: schedule_updates: {whole} is less than the {total} updates of this training and those that it "
            f"carries on from, the last of which would learn nothing; accepted: {total} or more, in all of them"
        )


def _optimized(objective: str, config: TrainConfig, inputs: Mapping[str, Any]) -> str:
    """Describe the model and optimizer that an optimizer's state belongs to."""
    extra = sorted(name for name, value in inputs.items() if value is not None and name not in OF_ALL)
    return f"{config.optimizer} for the objective {objective}" + (f" with {', '.join(extra)}" if extra else "")


def _made(training: Step) -> int:
    """Count the updates until a training's end, including those of the trainings that it continues."""
    config = training.inputs["config"]
    return int(config.updates) + (_made(training.inputs["start"]) if config.carry == "all" else 0)


def in_round(config: TrainConfig, i: int, rounds: int) -> TrainConfig:
    """Return the config of one of several rounds, counted from 1. Round 1 takes over only weights, whatever later
    rounds carry on. Rounds that carry on everything share one schedule, by default over the updates of all rounds."""
    if config.carry != "all":
        return config
    spans = config.schedule_updates or rounds * config.updates
    return config.model_copy(update={"schedule_updates": spans, "carry": "weights" if i == 1 else "all"})
