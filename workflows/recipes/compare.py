"""Compare several experiments in one table: the same systems of each, measured side by side and compared with one of
them.

Steps that experiments share, such as a collection or a warm-up, run once, as everywhere. A grid over one experiment,
such as the model sizes in Moiseev et al. (2023), is that experiment several times with other numbers.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sparring.components.config import Config as Part
from sparring.components.config import distinct, listing
from sparring.components.yaml_files import Assignments
from sparring.workflows.experiments import loading
from sparring.workflows.stages.sizes import tables
from sparring.workflows.steps.pictures import along
from sparring.workflows.store.dag import in_phase, relabelled, step
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome, Row, gathered, labels_apart, system_names


class Variant(Part):
    """An experiment with other values than those in its file."""

    file: str
    """File of the experiment, relative to where you run or to this config."""
    sets: Assignments = Field(min_length=1)
    """Changed values, `key.path=value`, as for `--set`."""


class Config(Part):
    """Experiments by name, and the systems of them that are compared."""

    recipe: Literal["compare"]
    experiments: dict[str, str | Variant] = Field(min_length=2)
    """Experiments by the name that tables show. Each is a file, relative to where you run or to this config, or a file
    with changed values."""
    baseline: str
    """Name of the experiment that the remaining experiments are compared with."""
    against: dict[str, str | Annotated[list[str], Field(min_length=1)]] = {}
    """Experiments, by name, that are compared with another experiment than the baseline, or with several."""
    systems: Annotated[list[str], AfterValidator(distinct)] = Field(min_length=1)
    """The systems of each experiment that are compared. Tables call them `experiment: system`."""
    other_systems: Annotated[list[str], AfterValidator(distinct)] = []
    """Further systems of the baseline that its own systems are compared with."""
    sets: Assignments = []
    """Changed values for every experiment, `key.path=value`, as for `--set`: `seeds=[1, 2, 3]`."""
    axis: str = "number"
    """Name of the charts' axis, such as `layers`."""
    curves: dict[str, dict[int, str]] = {}
    """Lines of the report's charts, one chart per measure. For each line's name, the experiment at each place of the
    axis."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if self.baseline not in self.experiments:
            raise ValueError(f"baseline: {self.baseline!r} is none of the experiments: {', '.join(self.experiments)}")
        drawn = [name for places in self.curves.values() for name in places.values()]
        compared = [name for subject in self.against for name in (subject, *self.opponents(subject))]
        for key, names in {"against": compared, "curves": drawn}.items():
            for name in names:
                if name not in self.experiments:
                    raise ValueError(f"{key}: {name!r} is none of the experiments: {', '.join(self.experiments)}")
        if self.baseline in self.against:
            raise ValueError(f"against: {self.baseline!r} is the baseline, which the others are compared with")
        for name in self.against:
            if name in self.opponents(name):
                raise ValueError(f"against: {name!r} is compared with itself; accepted: another experiment")
        return self

    def opponents(self, name: str) -> list[str]:
        """List the experiments that an experiment is compared with."""
        opponents = self.against.get(name, self.baseline)
        return [opponents] if isinstance(opponents, str) else opponents

    def variant(self, name: str) -> tuple[Path, list[str]]:
        """Return an experiment's file, and the values that are changed in it."""
        variant = self.experiments[name]
        file, sets = (variant, []) if isinstance(variant, str) else (variant.file, variant.sets)
        return Path(file), [*self.sets, *sets]


@in_phase(EVALUATION)
def build(config: Config) -> Outcome:
    """Join the graphs of all experiments in one table of results."""
    outcomes = {name: loading.read_outcome(*config.variant(name), f"experiments.{name}") for name in config.experiments}
    main = outcomes[config.baseline]
    systems = [row for name in config.other_systems for row in _measured(config, config.baseline, main, name)]
    comparisons, further = [], []
    for system in config.systems:
        for name, outcome in outcomes.items():
            title = f"{name}: {system}"
            systems += [replace(row, name=title) for row in _measured(config, name, outcome, system)]
            if name == config.baseline:
                further += [(title, opponent) for opponent in config.other_systems]
            else:
                comparisons += [(title, f"{opponent}: {system}") for opponent in config.opponents(name)]
    _check_seeds(systems, comparisons)
    _check_sets(systems)
    parts = _parts(outcomes)
    results = relabelled(gathered(systems, comparisons + further, parts=parts), labels_apart(outcomes))
    shown = [(name, picture) for name, outcome in outcomes.items() for picture in tables(outcome)]
    pictures = [replace(picture, label=f"{name}: {picture.label}") for name, picture in shown]
    if config.curves:
        lines = {
            name if len(config.systems) == 1 else f"{name}: {system}": {
                f"{experiment}: {system}": place for place, experiment in places.items()
            }
            for name, places in config.curves.items()
            for system in config.systems
        }
        pictures += [step("curves", along, results=results, axis=config.axis, curves=lines)]
    return Outcome(
        results=results,
        data=main.data,
        rows=systems,
        retrieval=main.retrieval,
        ranker=main.ranker,
        split=main.split,
        note=_note(outcomes),
        pictures=tuple(pictures),
        costs=main.costs,
        parts=parts,
        of_several="one an experiment",
    )


def _note(outcomes: dict[str, Outcome]) -> str:
    """Describe the start models for readers of the results: once if all experiments share it, otherwise by name."""
    notes: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        notes.setdefault(outcome.note, []).append(name)
    if len(notes) == 1:
        return outcome.note
    return " ".join(f"{listing(names)}: {note}" for note, names in notes.items() if note)


def _check_seeds(systems: list[Row], comparisons: list[tuple[str, str]]) -> None:
    """Raise ValueError for a comparison of two systems that share no seed."""
    seeds: dict[str, set[int]] = {}
    for row in systems:
        seeds.setdefault(row.name, set()).add(row.seed)
    for system, baseline in comparisons:
        if system in seeds and baseline in seeds and not seeds[system] & seeds[baseline]:
            raise ValueError(
                f"experiments: {system} and {baseline} have no seed in common, and would not be compared; "
                "accepted: `seeds` that they share"
            )


def _check_sets(systems: list[Row]) -> None:
    """Raise ValueError if labelled sets of one name have different data: ids do not tell sentences apart."""
    sets: dict[tuple[str, str], Row] = {}
    for system in systems:
        if system.encoder is None:
            continue
        first = sets.setdefault((system.collection, system.split), system)
        if first.data.fingerprint != system.data.fingerprint:
            raise ValueError(
                f"experiments: {first.name} and {system.name} are measured on different data, which both "
                f"call {system.collection!r}; accepted: the same, or other names"
            )


def _parts(outcomes: dict[str, Outcome]) -> dict[str, str | None] | None:
    """Merge the parts of collections in all experiments. Return None if no experiment has averages. ValueError if two
    disagree."""
    averaged = {name: outcome.parts for name, outcome in outcomes.items() if outcome.parts is not None}
    parts: dict[str, str | None] = {}
    for name, wholes in averaged.items():
        for collection, whole in wholes.items():
            if parts.setdefault(collection, whole) != whole:
                raise ValueError(
                    f"experiments: {name!r} has {collection!r} as a part of {whole!r}, and another has it "
                    f"as one of {parts[collection]!r}"
                )
    return parts if averaged else None


def _measured(config: Config, name: str, outcome: Outcome, system: str) -> list[Row]:
    """List the rows of an experiment's system, by seed, without a round, because one system has no curve over rounds.
    ValueError if there is no such system."""
    measured = [replace(row, round=None) for row in outcome.rows if row.name == system]
    if not measured:
        names = listing(system_names(outcome.rows))
        raise ValueError(f"systems: {name!r} ({config.variant(name)[0]}) has no {system!r}; it has {names}")
    return measured
