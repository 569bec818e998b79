"""A ranker over what a retriever retrieved, perhaps with other scores beside the ranker's."""

from dataclasses import dataclass
from typing import Any

from components.config import Config
from components.evaluation.gate import GateConfig
from components.retrieval.prior import PriorConfig
from workflows.stages.collection import Collection, Model
from workflows.stages.retrieval import Retrieval
from workflows.steps.gate import gate
from workflows.steps.prior import add_prior, fit_prior, teach_with_prior
from workflows.steps.score import RerankConfig, ScoreConfig, rerank, score_groups
from workflows.store.dag import Step, step


class DevConfig(Config):
    """Queries that no model is trained on, by which weights are fitted and gates decided."""

    split: str = "dev"
    queries: int | None = None
    """A sample of so many of the split's judged queries; null for all."""


@dataclass(frozen=True)
class Reranking:
    """One ranker over one retriever's rankings."""

    label: str
    """How the labels of its steps begin."""
    collection: Collection
    retrieval: Retrieval
    ranker: Model
    depth: RerankConfig
    dev: DevConfig
    prior: PriorConfig | None

    def ranking(self, split: str) -> Step:
        """A split's queries in the ranker's order."""
        reranked = self._reranked(split, self.depth)
        if self.prior is None:
            return reranked
        return step(
            f"{self.label} with priors ({split})", add_prior, reranked=reranked, priors=self._priors(split),
            weights=self.weights, depth=self.depth.depth,
        )  # fmt: skip

    @property
    def weights(self) -> Step:
        """The weights of the ranker's scores and the priors', and the dev queries' ranking by them."""
        split = self.dev.split
        return step(
            f"{self.label} weights", fit_prior, data=self.collection.data, reranked=self._of_dev,
            priors=self._priors(split), split=split, depth=self.depth.depth,
        )  # fmt: skip

    def gate(self, measure: str, config: GateConfig, advice: str) -> Step:
        """Whether the ranker's order of the dev queries is better than the retriever's."""
        return step(
            f"{self.label} gate", gate, data=self.collection.data, ranking=self.retrieval.ranking(self.dev.split),
            reranked=self._of_dev if self.prior is None else self.weights, split=self.dev.split, measure=measure,
            config=config, advice=advice,
        )  # fmt: skip

    def teach(self, label: str, groups: Step, config: ScoreConfig, split: str = "train") -> Step:
        """Groups of a split's queries with the scores as teacher."""
        judged = step(
            label, score_groups, data=self.collection.data, tokens=self.ranker.tokens, groups=groups,
            ranker=self.ranker.step, config=config,
        )  # fmt: skip
        if self.prior is None:
            return judged
        return step(
            f"{label} with priors", teach_with_prior, groups=judged, priors=self._priors(split), weights=self.weights
        )

    @property
    def _of_dev(self) -> Step:
        return self._reranked(self.dev.split, self.depth.model_copy(update={"queries": self.dev.queries}))

    def _reranked(self, split: str, depth: RerankConfig) -> Step:
        return step(
            f"{self.label} ({split})", rerank, data=self.collection.data, tokens=self.ranker.tokens,
            ranking=self.retrieval.ranking(split), split=split, ranker=self.ranker.step, config=depth,
        )  # fmt: skip

    def _priors(self, split: str) -> list[dict[str, Any]]:
        assert self.prior is not None
        rankings = {"retriever": self.retrieval.ranking(split), "bm25": self.collection.bm25(split)}
        return [{"name": name, "ranking": rankings[name]} for name in self.prior.scores]
