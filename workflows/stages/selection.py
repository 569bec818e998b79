"""Which comparison leads: the best trained system against the best untrained one, both selected on another split."""

from dataclasses import replace
from typing import Any, TypeVar

from workflows.stages.config import CollectionConfig
from workflows.stages.results import Outcome
from workflows.steps.select import select
from workflows.store.dag import graph, relabelled, step

C = TypeVar("C", bound=CollectionConfig)


def on_selection_split(config: C) -> C | None:
    """The same experiment, measured on the split that its systems are selected on; None where nothing is selected."""
    asked = config.evaluate
    if asked.select is None or asked.select_by is None:
        return None
    return config.model_copy(update={"evaluate": asked.model_copy(update={"split": asked.select})})


def led(outcome: Outcome, on_dev: Outcome | None, config: CollectionConfig) -> Outcome:
    """An outcome whose results begin with the comparison that leads. `on_dev` is that of the same experiment on the
    split that systems are selected on."""
    selection: Any = _why(config) if on_dev is None else None
    if on_dev is not None:
        systems = [
            {"system": one.name, "seed": one.seed, "trained": one.trained, "ranking": one.ranking,
             "queries": one.queries}
            for one in on_dev.systems
            if one.ranking is not None and not one.oracle and one.data.fingerprint == outcome.data.fingerprint
        ]  # fmt: skip
        selection = step(
            "selection", select, data=outcome.data, split=on_dev.split, measure=config.evaluate.select_by,
            systems=systems,
        )  # fmt: skip
        measured = {node.fingerprint: node.label for node in graph([outcome.results])}
        labels = {
            node.fingerprint: f"{node.label} ({on_dev.split})"
            for node in graph([selection])
            if node.fingerprint not in measured and node.label in measured.values()
        }
        selection = relabelled(selection, labels)
    made = outcome.results
    return replace(outcome, results=step(made.label, made.function, **{**made.inputs, "selection": selection}))


def _why(config: CollectionConfig) -> str:
    """Why nothing is selected."""
    if config.evaluate.select is None:
        return "evaluate.select names no split beside the measured one, so weights of fusions are the defaults too"
    return "no measure of evaluate.measures is by judgements, so weights of fusions are the defaults too"
