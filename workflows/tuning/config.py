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
    """The section `tune`: the search space, how it is searched, and the measure that trials are compared by."""

    measure: Measure
    """One of `evaluate.measures`; with several seeds, the mean over them."""
    systems: Annotated[list[str], AfterValidator(distinct)] = Field(min_length=1)
    """Rows of the results, in the order in which a trial reaches them. The last one's measure counts; after each other,
    the scheduler may stop the trial. By default the last row of the results."""
    split: str = "dev"
    """The split that the trials are measured on; never the one of the experiment's results."""
    goal: Literal["max", "min"] = "max"
    """Whether a higher or a lower measure is better."""
    trials: int = Field(1, ge=1)
    """How many points are drawn from the space, beside the baseline; each with every combination of the grids."""
    search: Literal["random", "optuna"] = "random"
    """How points are drawn: at random, or by Optuna's TPE, which learns from the trials that are finished."""
    scheduler: Literal["fifo", "asha"] = "fifo"
    """`fifo` takes every trial to the last system. `asha`, asynchronous successive halving (Li et al., 2020), stops
    trials that are behind."""
    reduction_factor: int = Field(3, ge=2)
    """Of ASHA: of so many trials that have reached a system, one goes on."""
    seed: int = 0
    """The seed of the draws."""
    baseline: bool = True
    """Whether the first trial is the config as it is."""
    space: dict[str, Range] = Field(min_length=1)
    """Dotted keys, as for `--set`, or names for several keys (`sets`), with the values that each may take."""


SAME = re.compile(r"(evaluate|answers|seeds|recipe|tune|data|scale|small)(\..*)?")
"""Keys that all trials have alike: with others they would be measured on other queries or documents, or by another
measure."""


@dataclass(frozen=True)
class TunedExperiment:
    """An experiment with a section `tune`, as the command has read it."""

    path: Path
    tree: dict[str, Any]
    run: Path
    tuning: Tuning
    _experiments: dict[str, Experiment] = field(default_factory=dict)

    def experiment(self, point: Point) -> Experiment:
        """The experiment with a point's values, measured on the tuning's split."""
        values = {"evaluate.split": self.tuning.split, **assignments(self.tuning.space, point)}
        sets = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        key = json.dumps(sets)
        if key not in self._experiments:
            self._experiments[key] = loading.made(override(self.tree, sets), self.path, self.run)
        return self._experiments[key]

    def measure_steps(self, experiment: Experiment) -> list[list[Step]]:
        """For each system the steps that measure it, one a seed; UserError where the results have no such system."""
        rows = experiment.outcome.rows
        steps = [[row.metrics for row in rows if row.name == system] for system in self.tuning.systems]
        for system, own in zip(self.tuning.systems, steps, strict=True):
            if not own:
                accepted = listing(system_names(rows))
                raise UserError(f"{self.path}: tune.systems: there is no {system!r}; accepted: {accepted}")
        return steps

    def artifacts(self, point: Point) -> list[str]:
        """The names of all that a point's measures stand on; none where the experiment does not accept it, which its
        trial says."""
        try:
            steps = self.measure_steps(self.experiment(point))
        except UserError:
            return []
        return [node.name for node in graph(step for own in steps for step in own)]

    @property
    def identity(self) -> str:
        """A digest of the config, the space and the measure, whatever `trials` says."""
        section = self.tuning.model_dump(mode="json", exclude={"trials"})
        results = self.experiment({}).outcome.results.fingerprint
        return hashlib.sha256(json.dumps([section, results], sort_keys=True).encode()).hexdigest()[:12]

    def optuna(self) -> Any:
        """The `optuna` module where the tuning uses it, else None; UserError where it is not installed."""
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
    """Read the experiment and check its section `tune`; UserError where it is missing or, where it is `to_run`, cannot
    work."""
    path = arguments.config
    tree = loading.tree_of(path, arguments.assignments)
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
    """Whether the experiment's config says another tuning than the one with an identity; not where it says none, as
    that of a run's folder, or has a mistake."""
    with suppress(UserError):
        return read_tuning(arguments, to_run=False).identity != identity
    return False


def _with_splits(tree: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """The experiment with the splits that its recipe has filled in, where it does that. Measured on another split a
    trial would fill in others, and train on queries, or be chosen by such, that the results are measured on."""
    if not experiment.defaults:
        return tree
    config = experiment.config.model_dump(mode="json")
    values = {"data.hold_out": config["data"]["hold_out"], "evaluate.select": config["evaluate"]["select"]}
    return override(tree, [f"{key}={json.dumps(value)}" for key, value in values.items()])


def _check_measure(path: Path, tuning: Tuning, evaluate: Any) -> None:
    """UserError unless the trials are measured on another split than the results, by a measure of the experiment."""
    if tuning.split in (evaluate.split, "test"):
        raise UserError(
            f"{path}: tune.split: {tuning.split!r} is for the results alone; numbers chosen by its queries would look "
            "better than they are; accepted: another split, such as dev"
        )
    if tuning.measure not in evaluate.measures:
        accepted = listing(evaluate.measures)
        raise UserError(f"{path}: tune.measure: {tuning.measure} is not measured; accepted: {accepted}")


def _check_split(path: Path, tuning: Tuning, experiment: Experiment) -> None:
    """UserError where the systems learn from the queries that they would be measured by."""
    rows = [row for row in experiment.outcome.rows if row.name in tuning.systems]
    if tuning.split == "train" and any(row.learns_from("train") for row in rows):
        raise UserError(
            f"{path}: tune.split: 'train' is what is learnt from; accepted: another, such as dev, or one that "
            "`data.hold_out` makes"
        )


def _check_space(tuned: TunedExperiment) -> None:
    """UserError where the experiment does not accept a value of the space, or trials could not be compared."""
    taken: dict[str, str] = {}
    for name, values in tuned.tuning.space.items():
        where = f"{tuned.path}: tune.space.{name}"
        for key in values.sets or [name]:
            other = next((one for one in taken if f"{one}.".startswith(f"{key}.") or key.startswith(f"{one}.")), None)
            if other is not None:
                raise UserError(f"{where}: {key}: tune.space.{taken[other]} sets {other}; accepted: each key once")
            taken[key] = name
            if SAME.fullmatch(key):
                raise UserError(
                    f"{where}: {key}: trials are compared on the same data, by the same measure; accepted: keys of "
                    "models, trainings and retrieval"
                )
        if tuned.tuning.search == "optuna" and values.grid is not None:
            raise UserError(f"{where}: grid: Optuna draws; accepted: choice, or search: random")
        for end in values.ends:
            tuned.measure_steps(tuned.experiment({name: end}))
        if values.inside is not None:  # a whole number in both bounds, and a fraction between them
            try:
                tuned.measure_steps(tuned.experiment({name: values.inside}))
            except UserError as error:
                raise UserError(f"{where}: it may draw {values.inside}: {error}") from None
