"""A search with a loaded system, and the stages that read other stages' rankings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sparring.components.config import Invalid
from sparring.components.retrieval.stage import StageConfig
from sparring.components.systems.documents import Documents
from sparring.components.systems.rankings import Ranking

if TYPE_CHECKING:
    from sparring.components.systems.config import SystemConfig


class Seconds(dict[str, float]):
    """Seconds that each part of a search took, one after another. BM25 runs at the same time as a retriever: its part
    is only the wait for it afterwards."""

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count this block as a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self[part] = self.get(part, 0.0) + time.perf_counter() - began


@dataclass
class Search:
    """A search for one or more queries, and what the stages have found so far. Lists have an entry for each query."""

    config: SystemConfig
    documents: Documents
    parts: Mapping[str, Any]
    """The opened index or models of each stage that computes with some, by the stage's name."""
    texts: Sequence[str]
    """The queries."""
    without: Sequence[str | None]
    """The document that is left out for each query, or None."""
    seconds: Seconds
    rankings: dict[str, list[Ranking]] = field(default_factory=dict)
    """Rankings by stage."""
    scores: dict[str, list[Ranking]] = field(default_factory=dict)
    """Scores that each stage computed, by stage. A ranker scores the first documents only."""
    vectors: dict[str, Any] = field(default_factory=dict)
    """Representations of the queries, by the stage of the retriever."""

    def add(self, name: str, rankings: list[Ranking], scores: list[Ranking] | None = None) -> None:
        """Add the rankings of a stage. If `scores` is None, the rankings have the scores that it computed."""
        self.rankings[name], self.scores[name] = rankings, rankings if scores is None else scores


class LaterStage(StageConfig):
    """Base of the stages that read other stages' rankings."""

    of: Any
    """Name of the stage that is read, or names of several."""

    searches: ClassVar[bool] = False
    """True if it searches the documents itself."""
    needs: ClassVar[Literal["vectors", "words"] | None] = None
    """Data that the stage `of` must have: a vector of each document, or an index of words."""

    @property
    def inputs(self) -> list[str]:
        """Names of the stages whose rankings this one reads."""
        return [self.of]

    @property
    def depth_read(self) -> int:
        """Number of documents that the ranking `of` needs. 0 if any number will do."""
        return 0

    def check(self, name: str, config: SystemConfig) -> None:
        """Raise Invalid unless the stage fits the stages that it reads."""
        if self.needs and config.stages[self.of].has != self.needs:
            message = f"stages.{name}.of: {self.of!r} has no {self.needs}; accepted: a stage that has them"
            raise Invalid(message, f"no-{self.needs}")

    def reach(self, config: SystemConfig) -> int:
        """Return the largest number of documents that the stage can rank."""
        return config.reach(self.of)

    def rank(self, name: str, search: Search) -> None:
        """Add this stage's rankings to a search. A reader adds none."""
        raise NotImplementedError
