"""A ranker over what was retrieved, perhaps with other scores beside the ranker's."""

from dataclasses import dataclass
from typing import Any

from sparring.components.evaluation.gate import GateConfig
from sparring.components.retrieval.prior import PriorConfig
from sparring.workflows.stages.collection import Collection, Model
from sparring.workflows.stages.config import EvaluateConfig
from sparring.workflows.stages.retrieval import Rankings, Retrieval
from sparring.workflows.steps.gate import gate
from sparring.workflows.steps.prior import add_prior, fit_prior, teach_with_prior
from sparring.workflows.steps.score import RerankConfig, ScoreConfig, rerank, score_groups
from sparring.workflows.store.dag import Step, step


@dataclass(frozen=True)
class Reranking:
    """One ranker over one retriever's rankings, or over others that it has a part in.

    Weights are fitted, and gates decided, on the split that `evaluate.select` names.
    """

    label: str
    """How the labels of its steps begin."""
    collection: Collection
    retrieval: Retrieval
    ranker: Model
    depth: RerankConfig
    evaluate: EvaluateConfig
    prior: PriorConfig | None = None
    over: Rankings | None = None
    """The rankings that are reranked; None for the retriever's."""

    def ranking(self, split: str) -> Step:
        """A split's queries in the ranker's order.

        Of the split that weights are fitted on, each half is ranked by weights that were fitted on the other.
        """
        if self.prior is None:
            return self._reranked(split)
        if split == self.evaluate.select:
            return self.weights
        return step(
            f"{self.label} with priors ({split})",
            add_prior,
            reranked=self._reranked(split),
            priors=self._priors(split),
            weights=self.weights,
            depth=self.depth.depth,
        )

    @property
    def weights(self) -> Step:
        """The weights of the ranker's scores and of the priors'."""
        split = self._select
        return step(
            f"{self.label} weights",
            fit_prior,
            data=self.collection.data,
            reranked=self._reranked(split),
            priors=self._priors(split),
            split=split,
            depth=self.depth.depth,
        )

    def gate(self, config: GateConfig) -> Step:
        """Whether the ranker's order is better than that of the ranking that it reads."""
        split = self._select
        return step(
            f"{self.label} gate",
            gate,
            data=self.collection.data,
            ranking=self._ranking(split),
            reranked=self.ranking(split),
            split=split,
            measure=self.evaluate.select_by,
            config=config,
        )

    def teach(self, label: str, groups: Step, config: ScoreConfig) -> Step:
        """Groups of training queries with the scores as teacher."""
        judged = step(
            label,
            score_groups,
            data=self.collection.data,
            tokens=self.ranker.tokens,
            groups=groups,
            ranker=self.ranker.step,
            config=config,
        )
        if self.prior is None:
            return judged
        return step(
            f"{label} with priors", teach_with_prior, groups=judged, priors=self._priors("train"), weights=self.weights
        )

    def _reranked(self, split: str) -> Step:
        return step(
            f"{self.label} ({split})",
            rerank,
            data=self.collection.data,
            tokens=self.ranker.tokens,
            ranking=self._ranking(split),
            split=split,
            ranker=self.ranker.step,
            config=self.depth,
        )

    def _ranking(self, split: str) -> Step:
        return (self.over or self.retrieval.ranking)(split)

    def _priors(self, split: str) -> list[dict[str, Any]]:
        assert self.prior is not None
        rankings = {"retriever": self.retrieval.ranking(split), "bm25": self.collection.bm25(split)}
        lexical_k = {"retriever": None, "bm25": rankings["bm25"].inputs["k"]}
        return [{"name": name, "ranking": rankings[name], "lexical_k": lexical_k[name]} for name in self.prior.scores]

    @property
    def _select(self) -> str:
        assert self.evaluate.select is not None  # a recipe's config sees to it
        return self.evaluate.select
