"""BM25 as a system, perhaps with relevance feedback."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.retrieval import lucene
from sparring.components.retrieval.kinds.lexical import LexicalStage as Stage
from sparring.components.retrieval.lucene import AnalyzerConfig, BM25Config, RM3Config
from sparring.workflows.steps.lucene import lucene_feedback, lucene_search
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent, path_for

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan


@dataclass(frozen=True, eq=False)
class Lexical(System):
    """BM25 over a Lucene index."""

    data: Step
    index: Step
    k: int
    """Number of documents for a query."""
    config: BM25Config
    rm3: RM3Config | None = None
    """Relevance feedback. If None, there is none."""

    stage = "lexical"

    @property
    def expense(self) -> int:  # type: ignore[override]
        """Feedback searches twice and reads what the first search found."""
        return 0 if self.rm3 is None else 1

    @property
    def is_lexical(self) -> bool:
        """Its scores are BM25's."""
        return True

    @property
    def lexical_k(self) -> int:
        """The number of requested documents."""
        return self.k

    def ranking(self, *splits: str) -> Step:
        """Return the step that ranks the queries of some splits."""
        common: dict[str, Any] = {"data": self.data, "index": self.index, "splits": list(splits), "k": self.k}
        label = f"({', '.join(splits)})"
        if self.rm3 is None:
            return step(f"bm25 ranking {label}", lucene_search, **common, config=self.config)
        return step(f"RM3 ranking {label}", lucene_feedback, **common, config=self.config, rm3=self.rm3)

    def cost(self, split: str) -> Cost:
        """The index, and one search."""
        return Cost(index=(self.index,), retrieve=(TimeSpent(self.ranking(split)),))

    @property
    def searched(self) -> list[Step]:
        """The Lucene index."""
        return [self.index]

    def describe(self, name: str, store: Store, names: Names) -> Stage:
        """Describe the index and its numbers."""
        analysis = self.index.inputs["config"].model_dump(include=set(AnalyzerConfig.model_fields))
        numbers = {"k1": self.config.k1, "b": self.config.b, "rm3": self.rm3, "k": self.k}
        return Stage.model_validate({"index": path_for("lucene", name), "analysis": analysis, **numbers})

    def open(self, name: str, plan: Plan, library: Library) -> Any:
        """Open the index. Java starts in a thread of its own."""
        stage = plan.config.stages[name]
        assert isinstance(stage, Stage)
        return library.bm25(self.index, stage)

    def write(self, stage: Stage, folder: Path, store: Store) -> None:
        """Copy the index."""
        shutil.copytree(store.path(self.index) / lucene.INDEX, folder / stage.index)
