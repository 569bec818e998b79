"""The rungs of a tuning: the moments at which a scheduler compares trials.

A rung is a validation of a training, or the measure of a system. Of a training's validations only the 1st, the n-th,
the n²-th and so on are rungs, where n is the tuning's `reduction_factor`: at each rung about one of n trials continues.
Validations are rungs in the order in which a trial reaches them. With several seeds only those of the first seed count.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from sparring.components.training.config import LOG, LOSS, Validation
from sparring.components.training.terms import declared
from sparring.workflows.store import s3
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.search_space import Point


class Rung(NamedTuple):
    """A moment at which trials are compared."""

    system: int
    """Number of the system that the trial works on, counted from 1."""
    training: str = ""
    """Label of the training. "" if the rung is the system's measure."""
    validation: int = 0
    """Number of the validation, counted from 1."""


def list_rungs(tuned: TunedExperiment, point: Point) -> list[Rung]:
    """List the rungs of a trial in the order in which the trial reaches them. The last one compares nothing."""
    rungs, seen = list[Rung](), set[str]()
    for number, steps in enumerate(tuned.measure_steps(tuned.experiment(point)), 1):
        for node in validated(steps):
            if node.fingerprint not in seen:
                seen.add(node.fingerprint)
                rungs += [Rung(number, node.label, count) for count in _counts(node, tuned.tuning.reduction_factor)]
        rungs.append(Rung(number))
    return rungs


def validated(steps: list[Step]) -> list[Step]:
    """List the trainings behind a system's first seed that validate, in the order in which they run."""
    return [node for node in graph(steps[:1]) if node.description.models == "training" and _validation(node)]


def read_validations(node: Step, store: Store, goal: str) -> list[float]:
    """Read what a training has validated so far, turned so that `goal` (`max` or `min`) is better.

    The list is empty if the training has not begun. The start model's validation, at update 0, is left out.
    """
    validation = _validation(node)
    assert validation is not None
    path, name = store.path(node) / LOG, f"dev {validation.measure}"
    if s3.is_cached(path):  # the newest log of any node; this node's own may be older, or be written now
        text = s3.read_bodies([path]).get(path, b"").decode()
    else:
        text = path.read_text() if path.is_file() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    lowest = validation.measure == LOSS or validation.measure in (declared(node.inputs["objective"], "lowest") or ())
    sign = 1.0 if lowest == (goal == "min") else -1.0
    return [sign * line[name] for line in lines if name in line and line["update"] > 0]


def _counts(node: Step, factor: int) -> Iterator[int]:
    """Yield the numbers of a training's validations that are rungs."""
    validation, count = _validation(node), 1
    while validation is not None and count * validation.every <= node.inputs["config"].updates:
        yield count
        count *= factor


def _validation(node: Step) -> Validation | None:
    """Return how a training validates; None if it does not."""
    validation: Validation | None = getattr(node.inputs.get("config"), "validate_on_dev", None)
    return validation
