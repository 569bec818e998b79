"""The section `tune` of an experiment: its keys, and the checks that it fits the experiment."""

import argparse
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sparring.components.config import Config, UserError, distinct, listing, parse
from sparring.components.evaluation.measures import Measure
from sparring.components.yaml_files import override
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.systems.rows import system_names
from sparring.workflows.tuning.search_space import Point, Range, assignments


class Tuning(Config):
    """The section `tune`: the search space, how to search it, and the measure that compares trials."""

    measure: Measure
    """Measure that trials are compared by, one of `evaluate.measures`. With more than one seed, it is the mean over the
    seeds."""
    systems: Annotated[list[str], AfterValidator(distinct)] = Field(min_length=1)
    """Rows of the results, in the order in which a trial reaches them. The measure of the last row counts. After each
    earlier row, and at validations of trainings, the scheduler may stop the trial. If left out, it is the last row of
    the results."""
    split: str = "dev"
    """Split that the trials are measured on. The split of the experiment's results is not accepted."""
    goal: Literal["max", "min"] = "max"
    """Direction of the search. `max`: a higher measure is better. `min`: a lower one is."""
    trials: int = Field(1, ge=1)
    """Number of points sampled from the space, without the baseline. Each is combined with all grids."""
    search: Literal["random", "optuna"] = "random"
    """Sampling of points. `random`: at random. `optuna`: by Optuna's TPE, which learns from finished trials."""
    scheduler: Literal["fifo", "asha", "hyperband"] = "fifo"
    """`fifo` takes every trial to the last system. `asha`, asynchronous successive halving (Li et al., 2020), stops
    trials that are behind, after a system or during a training with `validate_on_dev`. `hyperband` is ASHA with
    brackets: some trials are compared from the first validation, others only later or never."""
    reduction_factor: int = Field(3, ge=2)
    """The scheduler continues about one of this many trials each time that it compares them: after a system, and after
    the 1st, the n-th, the n²-th validation of a training and so on, where n is this number."""
    seed: int = 0
    """Seed of the sampled points."""
    baseline: bool = True
    """Run the unchanged config as the first trial."""
    space: dict[str, Range] = Field(min_length=1)
    """Values of dotted keys, as for `--set`, or of names that stand for one or more keys (`sets`)."""


SAME = re.compile(r"(evaluate|answers|seeds|recipe|tune|data|scale|small)(\..*)?")
"""Keys that must be equal in all trials. Changing them would change the queries, documents or measures of a trial."""


@dataclass(frozen=True)
class TunedExperiment:
    """An experiment with a section `tune`."""

    path: Path
    tree: dict[str, Any]
    run: Path
    tuning: Tuning
    _experiments: dict[str, Experiment] = field(default_factory=dict)

    def experiment(self, point: Point) -> Experiment:
        """Build the experiment with a point's values, measured on the tuning's split."""
        values = {"evaluate.split": self.tuning.split, **assignments(self.tuning.space, point)}
        sets = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        key = json.dumps(sets)
        if key not in self._experiments:
            self._experiments[key] = loading.build_experiment(override(self.tree, sets), self.path, self.run)
        return self._experiments[key]

    def measure_steps(self, experiment: Experiment) -> list[list[Step]]:
        """List for each system the steps that measure it, one for each seed. UserError if there is no such system."""
        rows = experiment.outcome.rows
        steps = [[row.metrics for row in rows if row.name == system] for system in self.tuning.systems]
        for system, seeds in zip(self.tuning.systems, steps, strict=True):
            if not seeds:
                accepted = listing(system_names(rows))
                raise UserError(f"{self.path}: tune.systems: there is no {system!r}; accepted: {accepted}")
        return steps

    def artifacts(self, point: Point) -> list[str]:
        """List the names of the artifacts behind a point's measures.

        The list is empty if the experiment does not accept the point; the trial then reports the reason.
        """
        try:
            steps = self.measure_steps(self.experiment(point))
        except UserError:
            return []
        return [node.name for node in graph(step for seeds in steps for step in seeds)]

    @property
    def identity(self) -> str:
        """Digest of the config, the space and the measure, without `trials`."""
        section = self.tuning.model_dump(mode="json", exclude={"trials"})
        results = self.experiment({}).outcome.results.fingerprint
        return hashlib.sha256(json.dumps([section, results], sort_keys=True).encode()).hexdigest()[:12]

    def optuna(self) -> Any:
        """Import `optuna` if the tuning uses it, otherwise return None. UserError if it is not installed."""
        if self.tuning.search != "optuna":
            return None
        try:
            import optuna
        except ImportError:
            raise UserError(
                f"{self.path}: tune.search: optuna is not installed; accepted: random, or `pip install optuna` first"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna


def read_tuning(arguments: argparse.Namespace, *, to_run: bool = True) -> TunedExperiment:
    """Read the experiment and its section `tune`. UserError if the section is missing.

    If the tuning is `to_run`, check the section too. UserError if it cannot work.
    """
    path = arguments.config
    tree = loading.read_tree(path, arguments.assignments)
    if "tune" not in tree:
        raise UserError(f"{path}: tune: missing; accepted: a section such as the one in configs/tune/demo.yaml")
    if not isinstance(tree["tune"], dict):
        raise UserError(f"{path}: tune: expected keys and values, got {tree['tune']!r}")
    experiment = loading.read(path, arguments.assignments, arguments.runs)
    if not hasattr(experiment.config, "evaluate"):
        recipe = experiment.config.recipe
        raise UserError(f"{path}: tune: {recipe} has no numbers of its own; tune one of its experiments")
    tree["tune"] = {"systems": system_names(experiment.outcome.rows)[-1:], **tree["tune"]}
    tuning = parse(Tuning, tree["tune"], where=f"{path}: tune")
    tuned = TunedExperiment(path, _with_splits(tree, experiment), experiment.run, tuning)
    if not to_run:
        return tuned
    tuned.measure_steps(experiment)
    _check_measure(path, tuning, experiment.config.evaluate)
    _check_split(path, tuning, experiment)
    _check_space(tuned)
    tuned.optuna()
    return tuned


def is_another(identity: str, arguments: argparse.Namespace) -> bool:
    """Check whether the experiment's config describes another tuning than the identity.

    Return False if the config describes no tuning, as in a run's folder, or has a mistake.
    """
    with suppress(UserError):
        return read_tuning(arguments, to_run=False).identity != identity
    return False


def _with_splits(tree: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Fix the splits that the recipe has filled in and the values that gave way to a budget of hours, and lift the
    budget.

    Measured on another split, a trial would fill in other splits. It could then train on, or be selected by, the
    queries of the results. A budget is of one run: other values would give way in each trial, and no trial selects.
    """
    config = experiment.config.model_dump(mode="json")
    values: dict[str, Any] = {f"budget.{key}": None for key in config.get("budget") or {}}
    if experiment.defaults:
        values |= {"data.hold_out": config["data"]["hold_out"], "evaluate.select": config["evaluate"]["select"]}
    if shape := config.get("shape"):
        values |= {change["key"]: change["value"] for change in shape["changes"]} | {"budget.hours": None}
    return override(tree, [f"{key}={json.dumps(value)}" for key, value in values.items()]) if values else tree


def _check_measure(path: Path, tuning: Tuning, evaluate: Any) -> None:
    """Check that trials are not measured on the split of the results, and by a measure of the experiment."""
    if tuning.split in (evaluate.split, "test"):
        raise UserError(
            f"{path}: tune.split: {tuning.split!r} is for the results alone; numbers chosen by its queries would look "
            "better than they are; accepted: another split, such as dev"
        )
    if tuning.measure not in evaluate.measures:
        accepted = listing(evaluate.measures)
        raise UserError(f"{path}: tune.measure: {tuning.measure} is not measured; accepted: {accepted}")


def _check_split(path: Path, tuning: Tuning, experiment: Experiment) -> None:
    """Check that the systems do not learn from the queries that measure them."""
    rows = [row for row in experiment.outcome.rows if row.name in tuning.systems]
    if tuning.split == "train" and any(row.learns_from("train") for row in rows):
        raise UserError(
            f"{path}: tune.split: systems learn from 'train'; accepted: another split, such as dev, or one that "
            "`data.hold_out` makes"
        )


def _check_space(tuned: TunedExperiment) -> None:
    """Check that the experiment accepts the values of the space, and that trials can be compared."""
    names: dict[str, str] = {}
    for name, values in tuned.tuning.space.items():
        where = f"{tuned.path}: tune.space.{name}"
        for key in values.sets or [name]:
            clash = next((old for old in names if f"{old}.".startswith(f"{key}.") or key.startswith(f"{old}.")), None)
            if clash is not None:
                raise UserError(f"{where}: {key}: tune.space.{names[clash]} sets {clash}; accepted: each key once")
            names[key] = name
            if SAME.fullmatch(key):
                raise UserError(
                    f"{where}: {key}: trials are compared on the same data, by the same measure; accepted: keys of "
                    "models, trainings and retrieval"
                )
        if tuned.tuning.search == "optuna" and values.grid is not None:
            raise UserError(f"{where}: grid: Optuna draws; accepted: choice, or search: random")
        for end in values.ends:
            tuned.measure_steps(tuned.experiment({name: end}))
        if values.inside is not None:  # both bounds may be whole numbers, and the value between them a fraction
            try:
                tuned.measure_steps(tuned.experiment({name: values.inside}))
            except UserError as error:
                raise UserError(f"{where}: it may draw {values.inside}: {error}") from None
