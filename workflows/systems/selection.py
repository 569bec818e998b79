"""Which comparison leads: the best trained system against the best untrained one, both selected on another split."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.phases import EVALUATION
from sparring.workflows.steps.select import select
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled, step
from sparring.workflows.systems.results import Outcome


def built(build: Callable[[Any], Outcome], config: CollectionConfig) -> Outcome:
    """A recipe's graph, whose results begin with the comparison that leads.

    All systems are measured on the split that they are selected on as they are on their own: by the recipe itself, with
    that split in place of the measured one. What both need, such as the trainings, is one step and done once.
    """
    outcome, asked = build(config), config.evaluate
    if "train" in (asked.split, asked.select) and any(one.learns_from("train") for one in outcome.systems):
        if asked.select == "train":
            raise ValueError(
                "evaluate.select: 'train' is what is learnt from; accepted: another split, such as one that "
                "`data.hold_out` makes"
            )
        note = f"{outcome.note} The measured queries, of `train`, are those that it learnt from."
        outcome = replace(outcome, note=note)
    looks = [node.inputs for node in graph([outcome.results]) if node.function is train and node.inputs["dev"]]
    chose = [one["config"].validate_on_dev.split for one in looks if one["dev"].inputs.get("data") is outcome.data]
    if asked.split in chose:
        note = f"{outcome.note} The measured queries, of `{asked.split}`, chose among the weights of trainings too."
        outcome = replace(outcome, note=note.strip())
    if outcome.unmeasured:
        return outcome
    if asked.select == asked.split:
        why = "evaluate.select is the measured split"
        return _led(outcome, why)
    if asked.select is None or asked.select_by is None:
        named, unjudged = "evaluate.select names no split", "no measure of evaluate.measures is by judgements"
        why = named if asked.select is None else unjudged
        return _led(outcome, f"{why}, so weights of fusions are the defaults too")
    there = config.model_copy(update={"evaluate": asked.model_copy(update={"split": asked.select})})
    return _led(outcome, _selection(outcome, build(there), asked.select_by))


@in_phase(EVALUATION)
def _selection(outcome: Outcome, there: Outcome, measure: str) -> Step:
    """The step that selects, by the systems' rankings of the split that they are selected on."""
    systems = [
        {
            "system": one.name,
            "seed": one.seed,
            "trained": one.trained,
            "ranking": one.ranking,
            "queries": one.queries,
            **({"cost": outcome.levels[one.name]} if one.name in outcome.levels else {}),
        }
        for one in there.systems
        if one.ranking is not None and not one.oracle and one.data.fingerprint == outcome.data.fingerprint
    ]
    selection = step("selection", select, data=outcome.data, split=there.split, measure=measure, systems=systems)
    measured = {node.fingerprint: node.label for node in graph([outcome.results])}
    taken = set(measured.values())
    own = [node for node in graph([selection]) if node.fingerprint not in measured]
    return relabelled(
        selection,
        {node.fingerprint: f"{node.label} ({there.split})" for node in own if node.label in taken},
        {node.fingerprint: EVALUATION for node in own},
    )


@in_phase(EVALUATION)
def _led(outcome: Outcome, selection: Step | str) -> Outcome:
    """An outcome whose results know what was selected, or why nothing was."""
    made = outcome.results
    return replace(outcome, results=step(made.label, made.function, **{**made.inputs, "selection": selection}))
