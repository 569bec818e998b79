"""Fusion of the rankings of several systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.components.retrieval.fusion import FusionConfig, read_chosen
from sparring.components.systems.stages.fused import FusedStage as Stage
from sparring.workflows.steps.fit_fusion import fit_fusion
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store


@dataclass(frozen=True, eq=False)
class Fused(System):
    """Two or more systems whose rankings are fused, with fixed numbers or with the best ones on a split."""

    label: str
    data: Step
    systems: Sequence[System]
    fusion: FusionConfig
    """The numbers, or the start of the search for better ones."""
    fit_on: tuple[str, str] | None = None
    """Split and measure that choose the numbers. If None, `fusion` is used. Each half of that split's queries is fused
    with the numbers that are best for the other half."""
    with_split: bool = True
    """True if labels of steps name the split."""

    stage = "fusion"
    expense = 2

    @property
    def parts(self) -> Sequence[System]:
        """The fused systems."""
        return self.systems

    @property
    def is_lexical(self) -> bool:
        """True if all parts' scores are BM25's."""
        return all(part.is_lexical for part in self.systems)

    @property
    def _lexical(self) -> list[int]:
        return [place for place, part in enumerate(self.systems) if part.is_lexical]

    @property
    def _fit(self) -> Step | None:
        """The step that chose the numbers."""
        if self.fit_on is None:
            return None
        split, measure = self.fit_on
        return step(
            f"{self.label} weights",
            fit_fusion,
            data=self.data,
            rankings=[part.ranking(split) for part in self.systems],
            split=split,
            measure=measure,
            config=self.fusion,
            lexical=self._lexical,
        )

    def ranking(self, split: str) -> Step:
        """Fuse the parts' rankings."""
        fit = self._fit
        if fit is not None and self.fit_on is not None and split == self.fit_on[0]:
            return fit
        return step(
            f"{self.label} ({split})" if self.with_split else self.label,
            fuse,
            data=self.data,
            rankings=[part.ranking(split) for part in self.systems],
            split=split,
            config=fit or self.fusion,
            lexical=self._lexical,
        )

    def cost(self, split: str) -> Cost:
        """The parts, and the fusion."""
        return super().cost(split) + Cost(retrieve=(TimeSpent(self.ranking(split)),))

    @property
    def chosen(self) -> list[Step]:
        """The step that chose the numbers, if one did."""
        return [] if (fit := self._fit) is None else [fit]

    def describe(self, name: str, store: Store, names: Names) -> Stage:
        """Describe what is fused and how."""
        fusion = self.fusion if (fit := self._fit) is None else read_chosen(store.path(fit))
        return Stage.model_validate({**fusion.model_dump(), "of": [names(part) for part in self.systems]})
