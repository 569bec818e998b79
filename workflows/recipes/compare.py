"""Several experiments on one board: the same systems of each, measured side by side and compared with one of them.

What experiments have in common (a collection, a warm start) is run once, as everywhere. A grid over one experiment, as
the sizes of models in paper 000, is that experiment several times with other numbers.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.config import listing
from workflows import recipes
from workflows.board import Outcome, gathered
from workflows.dag import graph, relabelled, step
from workflows.steps.pictures import along


class Variant(Part):
    """An experiment with other numbers than its file's."""

    file: str
    """The experiment's file, relative to where you run."""
    sets: list[str] = Field(min_length=1)
    """`key.path=value`, as `--set` has it."""


class Config(Part):
    """Experiments by name, and what of them is looked at."""

    recipe: Literal["compare"]
    experiments: dict[str, str | Variant] = Field(min_length=2)
    """A name for the table, and the experiment's file, relative to where you run, perhaps with other numbers."""
    baseline: str
    """The experiment that the others are compared with."""
    against: dict[str, str | Annotated[list[str], Field(min_length=1)]] = {}
    """Experiments that are compared with another than the baseline, or with several, by name."""
    systems: list[str] = Field(min_length=1)
    """The systems of each that are compared, in the table as `experiment: system`."""
    beside: list[str] = []
    """Further systems, of the baseline, that are shown, and that it is compared with."""
    sets: list[str] = []
    """`key.path=value` for every experiment, as `--set` has it: `seeds=[1, 2, 3]`."""
    axis: str = "number"
    """What the charts below have on their axis, such as `layers`."""
    curves: dict[str, dict[int, str]] = {}
    """Lines of a chart that the report has of each measure: where on the axis which experiment stands."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if self.baseline not in self.experiments:
            raise ValueError(f"baseline: {self.baseline!r} is none of the experiments: {', '.join(self.experiments)}")
        drawn = [name for places in self.curves.values() for name in places.values()]
        compared = [name for one in self.against for name in (one, *self.opponents(one))]
        for key, names in {"against": compared, "curves": drawn}.items():
            for name in names:
                if name not in self.experiments:
                    raise ValueError(f"{key}: {name!r} is none of the experiments: {', '.join(self.experiments)}")
        return self

    def opponents(self, name: str) -> list[str]:
        """The experiments that one is compared with."""
        found = self.against.get(name, self.baseline)
        return [found] if isinstance(found, str) else found

    def variant(self, name: str) -> tuple[Path, list[str]]:
        """An experiment's file, and what is set in it."""
        found = self.experiments[name]
        file, own = (found, []) if isinstance(found, str) else (found.file, found.sets)
        return Path(file), [*self.sets, *own]


def build(config: Config) -> Outcome:
    """The graphs of all experiments, and one board."""
    outcomes = {name: recipes.read(*config.variant(name), Path("runs")).outcome for name in config.experiments}
    main = outcomes[config.baseline]
    entries = [entry for system in config.beside for entry in _entries(config, config.baseline, main, system)]
    comparisons, beside = [], []
    for system in config.systems:
        for name, outcome in outcomes.items():
            title = f"{name}: {system}"
            entries += [{**entry, "system": title} for entry in _entries(config, name, outcome, system)]
            if name == config.baseline:
                beside += [(title, other) for other in config.beside]
            else:
                comparisons += [(title, f"{other}: {system}") for other in config.opponents(name)]
    results = relabelled(gathered(entries, comparisons + beside), _labels(outcomes))
    pictures = []
    if config.curves:
        lines = {
            name if len(config.systems) == 1 else f"{name}: {system}": {
                f"{experiment}: {system}": place for place, experiment in places.items()
            }
            for name, places in config.curves.items()
            for system in config.systems
        }
        pictures = [step("curves", along, results=results, axis=config.axis, curves=lines)]
    return Outcome(
        results=results, data=main.data, found=main.found, ranker=main.ranker, rankings=main.rankings,
        split=main.split, note=main.note, pictures=tuple(pictures), costs=main.costs,
    )  # fmt: skip


def _labels(outcomes: dict[str, Outcome]) -> dict[str, str]:
    """Steps that not all experiments have in common say of which one they are, by fingerprint."""
    steps = {name: {node.fingerprint: node.label for node in graph([o.results])} for name, o in outcomes.items()}
    shared = set.intersection(*map(set, steps.values()))
    labels: dict[str, str] = {}
    for name, of in steps.items():
        for fingerprint in of.keys() - shared - labels.keys():
            labels[fingerprint] = f"{name}: {of[fingerprint]}"
    return labels


def _entries(config: Config, name: str, outcome: Outcome, system: str) -> list[dict[str, Any]]:
    """A system of an experiment on its board, one entry a seed and without its round, as there is no curve to draw of
    one; ValueError where it has none."""
    board = outcome.results.inputs["systems"]
    found = [{**entry, "round": None} for entry in board if entry["system"] == system]
    if not found:
        there = listing(dict.fromkeys(entry["system"] for entry in board))
        raise ValueError(f"systems: {name!r} ({config.variant(name)[0]}) has no {system!r}; it has {there}")
    return found
