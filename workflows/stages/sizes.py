"""Size against quality: a retriever's vectors, searched in several ways as rows of the table."""

from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.workflows.stages.results import Results
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.steps.sizes import SIZES, sizes
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome


class SizesKey(Config):
    """The key of recipes that can measure smaller vectors."""

    sizes: dict[str, SearchConfig] = Field({}, exclude_if=lambda sizes: not sizes)
    """Further ways to search the last retriever's vectors, by the ending of their names in tables: `{int8: {vectors:
    int8}, "96 dimensions": {dimensions: 96}, PQ48: {index: PQ48}}`. They use the encoded vectors; nothing is encoded
    again. The report then has a table of size against quality."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if "" in self.sizes:
            raise ValueError("sizes: a name is empty; accepted: what a table is to call it")
        return self


@dataclass
class Sizes:
    """A retriever's vectors in several sizes, measured."""

    results: Results
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Entries for the step `sizes`, one for each size and seed."""

    @in_phase(EVALUATION)
    def add(self, system: str, retrieval: Dense, searches: dict[str, SearchConfig], *, seed: int) -> None:
        """Measure each size of a system that was itself measured."""
        if not searches:
            return
        split = self.results.config.evaluate.split
        whole = retrieval.ranking(split)
        self._row(system, "", retrieval, whole, seed)
        for size, search in searches.items():
            variant, name = retrieval.searching(search, size, variant=True), f"{system}, {size}"
            self.results.add(name, variant, seed=seed)
            self._row(system, size, variant, whole, seed)

    def _row(self, system: str, size: str, retrieval: Dense, whole: Step, seed: int) -> None:
        name = f"{system}, {size}" if size else system
        metrics = next(row for row in reversed(self.results.rows) if (row.name, row.seed) == (name, seed)).metrics
        self.rows.append(
            {
                "system": name,
                "seed": seed,
                "metrics": metrics,
                "whole": whole,
                "ranking": retrieval.ranking(self.results.config.evaluate.split),
                "searched": retrieval.index or retrieval.searched_vectors,
                "rescored_by": retrieval.rescored_by,
            }
        )

    @in_phase(EVALUATION)
    def table(self, label: str = "sizes") -> tuple[Step, ...]:
        """Return the step that sets size against quality. Empty if no sizes were measured."""
        return (step(label, sizes, rows=self.rows),) if self.rows else ()


def tables(outcome: Outcome) -> tuple[Step, ...]:
    """List an outcome's tables of sizes."""
    return tuple(picture for picture in outcome.pictures if SIZES in picture.description.shows)
