"""Cross-validate: run an experiment for each fold of the judged queries, and join the results in one table.

This is for a collection with so few judged queries that none can be spared. Each fold trains on the remaining queries,
selects on one part of those, and is measured on its own. So every query is measured once, by models that have not seen
it.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config as Part
from sparring.components.config import listing
from sparring.components.evaluation.selection import Kind
from sparring.components.yaml_files import Assignments
from sparring.workflows.experiments import loading
from sparring.workflows.steps.cross_validate import pool, pool_selected
from sparring.workflows.store.dag import Step, in_phase, relabelled, step
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome, Row, gathered, labels_apart, system_names

SPLITS = ("train", "dev", "test")
SELECTED: dict[str, Kind] = {"best by dev": "all", "best untrained by dev": "untrained"}
"""Names of the rows for the systems that each fold selects, with the kind of system."""


class Config(Part):
    """An experiment, and the folds of its queries."""

    recipe: Literal["folds"]
    experiment: str
    """File of the experiment, relative to where you run or to this config. It has one collection, is measured on
    `test`, and selects its systems on `dev`."""
    sets: Assignments = []
    """Changed values for the experiment, `key.path=value`, as for `--set`."""
    folds: int = Field(5, ge=3)
    """Number of folds. Each fold is measured once. The next fold is then dev, and the remaining folds are trained
    on."""
    of: str = "test"
    """Split whose queries are divided, by their ids."""

    @model_validator(mode="after")
    def _makes_the_splits(self) -> Self:
        for assignment in self.sets:
            if assignment.partition("=")[0].strip().startswith("data.hold_out"):
                raise ValueError(f"sets: {assignment}: a fold makes {listing(SPLITS)} itself; accepted: left out")
        return self

    def hold_out(self, fold: int) -> dict[str, dict[str, Any]]:
        """Return the splits of a fold, from 0 on, as `data.hold_out` has them. The divided split keeps the rest."""
        shares = {"test": (0, 1), "dev": (1, 1), "train": (2, self.folds - 2)}
        return {
            split: {
                "of": self.of,
                "start": (fold + shares[split][0]) % self.folds / self.folds,
                "share": shares[split][1] / self.folds,
            }
            for split in SPLITS
            if split != self.of
        }


def build(config: Config) -> Outcome:
    """Build the graph of every fold, and the results over all queries."""
    _check_held_out(config)
    outcomes = {
        f"fold {fold + 1}": loading.read_outcome(
            Path(config.experiment),
            [*config.sets, f"data.hold_out={json.dumps(config.hold_out(fold))}"],
            needs=["data", "evaluate"],
        )
        for fold in range(config.folds)
    }
    first = next(iter(outcomes.values()))
    if first.split != "test":
        raise ValueError(
            f"experiment: it is measured on {first.split!r}, and a fold is `test`, which no training "
            "sees; accepted: evaluate.split: test"
        )
    for row in first.rows:
        if row.data.fingerprint != first.data.fingerprint:
            raise ValueError(
                f"experiment: it is measured on {row.collection!r} too (evaluate.other_qrels or guard), whose "
                "queries are not divided; accepted: one collection"
            )
    systems = [system for seed in _seeds(first) for system in _over_all(list(outcomes.values()), seed)]
    names = system_names(systems)
    pairs = first.results.inputs["comparisons"]
    comparisons = [tuple(SELECTED), *((pair["system"], pair["baseline"]) for pair in pairs)]
    results = gathered(systems, [pair for pair in comparisons if set(pair) <= set(names)])
    return replace(
        first,
        results=relabelled(results, labels_apart(outcomes)),
        rows=systems,
        pictures=(),
        levels={},
        early=(),
        of_several="one a fold",
    )


def _check_held_out(config: Config) -> None:
    """Raise ValueError if the experiment holds out splits that a fold does not make. A fold's splits replace them."""
    data = loading.read_tree(Path(config.experiment), config.sets).get("data")
    held = data.get("hold_out") if isinstance(data, dict) else None
    if further := [split for split in held or () if split not in SPLITS]:
        raise ValueError(
            f"experiment: data.hold_out: {listing(further)}: a fold makes {listing(SPLITS)} alone; "
            "accepted: none but these"
        )


def _seeds(outcome: Outcome) -> list[int]:
    return sorted({system.seed for system in outcome.rows})


@in_phase(EVALUATION)
def _over_all(outcomes: list[Outcome], seed: int) -> list[Row]:
    """Measure one seed's systems, and the systems that the folds select, over all folds."""
    of_folds = [{row.name: row for row in outcome.rows if row.seed == seed} for outcome in outcomes]
    first = of_folds[0]
    for fold in of_folds[1:]:
        if fold.keys() != first.keys():
            raise ValueError(f"experiment: one fold has the systems {listing(first)}, and another {listing(fold)}")
    suffix = "" if len(_seeds(outcomes[0])) == 1 else f" (seed {seed})"
    systems = [
        _pooled(system, step(f"{name} measures{suffix}", pool, folds=[fold[name].metrics for fold in of_folds]))
        for name, system in first.items()
    ]
    folds = [
        {"selection": outcome.results.inputs["selection"], "measures": {name: fold[name].metrics for name in fold}}
        for outcome, fold in zip(outcomes, of_folds, strict=True)
    ]
    if not all(isinstance(fold["selection"], Step) for fold in folds):
        return systems
    for name, kind in SELECTED.items():
        measures = step(f"{name} measures{suffix}", pool_selected, folds=folds, kind=kind)
        systems.append(_pooled(replace(next(iter(first.values())), name=name), measures))
    return systems


def _pooled(system: Row, measures: Step) -> Row:
    """Return a system as measured over all folds. It has no ranking, retriever or ranker of its own."""
    return replace(system, round=None, metrics=measures, ranking=None, system=None, analysis=None)
