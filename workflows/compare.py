"""Several experiments on one board: the same systems of each, measured side by side and compared with one of them.

What experiments have in common (a collection, a warm start) is run once, as everywhere.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from workflows import recipes
from workflows.parts import Outcome, gathered


class Config(Part):
    """Experiments by name, and what of them is looked at."""

    recipe: Literal["compare"]
    experiments: dict[str, str] = Field(min_length=2)
    """A name for the table, and the experiment's file, relative to where you run."""
    baseline: str
    """The experiment that the others are compared with."""
    systems: list[str] = Field(min_length=1)
    """The systems of each that are compared."""
    beside: list[str] = []
    """Further systems, of the baseline, that are shown."""
    sets: list[str] = []
    """`key.path=value` for every experiment, as `--set` has it: `seeds=[1, 2, 3]`."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if self.baseline not in self.experiments:
            raise ValueError(f"baseline: {self.baseline!r} is none of the experiments: {', '.join(self.experiments)}")
        return self


def build(config: Config) -> Outcome:
    """The graphs of all experiments, and one board."""
    outcomes = {
        name: recipes.read(Path(file), config.sets, Path("runs")).outcome for name, file in config.experiments.items()
    }
    chosen = [*config.beside, *config.systems]
    entries: dict[tuple[str, str, int], dict[str, Any]] = {}
    for name, outcome in outcomes.items():
        for entry in outcome.results.inputs["systems"]:
            if entry["system"] in config.systems or (name == config.baseline and entry["system"] in config.beside):
                entries[name, entry["system"], entry["seed"]] = entry
    for name in outcomes:
        for system in config.systems:
            if not any(key[:2] == (name, system) for key in entries):
                raise ValueError(f"systems: {name!r} ({config.experiments[name]}) has no {system!r}")

    def called(name: str, system: str) -> str:
        """The system's own name where it is the same in every experiment."""
        same = {e["metrics"].fingerprint for key, e in entries.items() if key[1] == system and key[2] == first}
        return system if len(same) == 1 else f"{name}: {system}"

    first = next(iter(entries))[2]
    rows = {
        (called(name, system), seed): {**entry, "system": called(name, system)}
        for (name, system, seed), entry in sorted(entries.items(), key=lambda item: chosen.index(item[0][1]))
    }
    comparisons = [
        (called(name, system), called(config.baseline, system))
        for system in config.systems for name in outcomes if name != config.baseline
    ]  # fmt: skip
    main = outcomes[config.baseline]
    return Outcome(
        results=gathered(list(rows.values()), [pair for pair in comparisons if pair[0] != pair[1]]), data=main.data,
        found=main.found, ranker=main.ranker, rankings=main.rankings, split=main.split, note=main.note,
    )  # fmt: skip
