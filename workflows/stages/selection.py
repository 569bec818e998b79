"""Selects which comparison leads: the best trained system against the best untrained one, both on another split."""

from collections.abc import Mapping
from dataclasses import replace

from sparring.components.config import Invalid
from sparring.components.evaluation.budget import GUARD
from sparring.workflows.stages.budget import latency
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.steps.select import select
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled, step
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome


def selected(outcome: Outcome, config: CollectionConfig) -> Outcome:
    """Add the selection on `evaluate.select` to a recipe's results, and what a reader must know of the splits.

    All systems rank the split that they are selected on as they rank the measured one. What both need, such as the
    trainings, is done once.
    """
    evaluate = config.evaluate
    if "train" in (evaluate.split, evaluate.select) and any(row.learns_from("train") for row in outcome.rows):
        if evaluate.select == "train":
            raise ValueError(
                "evaluate.select: 'train' is what is learnt from; accepted: another split, such as one that "
                "`data.hold_out` makes"
            )
        note = f"{outcome.note} The measured queries, of `train`, are those that it learnt from."
        outcome = replace(outcome, note=note)
    trainings = [node for node in graph([outcome.results]) if node.description.models == "training"]
    looks = [node.inputs for node in trainings if node.inputs["dev"]]
    chose = [look["config"].validate_on_dev.split for look in looks if look["dev"].inputs.get("data") is outcome.data]
    if evaluate.split in chose:
        note = f"{outcome.note} The measured queries, of `{evaluate.split}`, chose among the weights of trainings too."
        outcome = replace(outcome, note=note.strip())
    if outcome.unmeasured:
        return outcome
    unselected = evaluate.select in (None, evaluate.split) or evaluate.select_by is None
    if config.budget is not None and config.budget.limits and unselected:
        raise Invalid(
            "budget: it limits which system is chosen, and nothing chooses one. Name a split other than the measured "
            "one as `evaluate.select` and a measure by judgements, or leave the budget out.",
            "no-selection",
            "budget",
        )
    if evaluate.select == evaluate.split:
        return _led(outcome, "evaluate.select is the measured split")
    if evaluate.select is None:
        return _led(outcome, "evaluate.select names no split, so weights of fusions are the defaults too")
    if evaluate.select_by is None:
        reason = "no measure of evaluate.measures is by judgements"
        return _led(outcome, f"{reason}, so weights of fusions are the defaults too")
    if config.budget is not None:
        with in_phase(EVALUATION):
            first = replace(outcome, rows=outcome.rows[::-1]).ranked  # an early outcome waits for no later seed
            needs = {
                name: latency(first[name], evaluate.select) for name, row in outcome.ranked.items() if not row.oracle
            }
        outcome = replace(outcome, needs=needs)
    limits = {} if config.budget is None else config.budget.limits
    if outcome.guard_loss is not None:
        limits = {**limits, GUARD: outcome.guard_loss}
    selection = _selection(outcome, evaluate.select, evaluate.select_by, limits)
    early = [
        replace(_led(before, _among(before, selection)), needs={name: outcome.needs[name] for name in before.ranked})
        if outcome.needs
        else _led(before, _among(before, selection))
        for before in outcome.early
    ]
    return replace(_led(outcome, selection), early=early)


@in_phase(EVALUATION)
def _selection(outcome: Outcome, split: str, measure: str, limits: Mapping[str, float]) -> Step:
    """Select by the systems' rankings of a split, among those within the limits."""
    systems = [
        {
            "system": row.name,
            "seed": row.seed,
            "trained": row.trained,
            "ranking": row.system.ranking(split),
            "queries": row.queries,
            **({"cost": outcome.levels[row.name]} if row.name in outcome.levels else {}),
            **({"limits": limits} if limits or outcome.needs else {}),
            **({"measured": outcome.needs[row.name]} if outcome.needs else {}),
            **({"guard": guard} if (guard := outcome.guards.get((row.name, row.seed))) else {}),
        }
        for row in outcome.rows
        if row.system is not None
        and row.ranking is not None
        and row.system.covers(split)
        and not row.oracle
        and row.data.fingerprint == outcome.data.fingerprint
    ]
    selection = step("selection", select, data=outcome.data, split=split, measure=measure, systems=systems)
    measured = {node.fingerprint: node.label for node in graph([outcome.results])}
    taken = set(measured.values())
    nodes = [node for node in graph([selection]) if node.fingerprint not in measured]
    phases = {node.fingerprint: EVALUATION for node in nodes}
    for before in reversed(outcome.early):  # what an early outcome needs is made in its phase
        for node in graph([_among(before, selection)])[:-1]:
            if node.fingerprint in phases:
                phases[node.fingerprint] = before.results.phase
    labels = {node.fingerprint: f"{node.label} ({split})" for node in nodes if node.label in taken}
    return relabelled(selection, labels, phases)


def _among(early: Outcome, selection: Step) -> Step:
    """Select among the systems of an early outcome, as a whole run's selection does."""
    assert early.interim is not None
    rows = {(row.name, row.seed) for row in early.rows}
    systems = [entry for entry in selection.inputs["systems"] if (entry["system"], entry["seed"]) in rows]
    inputs = {**selection.inputs, "systems": systems}
    label = f"{selection.label} {early.interim.moment}"
    return replace(step(label, selection.function, **inputs), phase=early.results.phase)


def _led(outcome: Outcome, selection: Step | str) -> Outcome:
    """Add the selection to the results, or the reason why there is none."""
    node = outcome.results
    results = step(node.label, node.function, **{**node.inputs, "selection": selection})
    return replace(outcome, results=replace(results, phase=node.phase))
