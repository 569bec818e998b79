"""Rerankings of another system's rankings, perhaps with further scores added to the reranker's."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparring.components.evaluation.gate import GateConfig
from sparring.components.files import read_json
from sparring.components.models.configs import RANKER_CODE
from sparring.components.retrieval.prior import WEIGHTS
from sparring.components.systems import model_folder
from sparring.components.systems.stages.ranker import RankerStage as Stage
from sparring.workflows.steps.gate import gate
from sparring.workflows.steps.prior import RANKER, add_prior, fit_prior, teach_with_prior
from sparring.workflows.steps.score import RerankConfig, ScoreConfig, rerank, score_groups
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent, path_for

if TYPE_CHECKING:
    from pathlib import Path

    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan


@dataclass(frozen=True, eq=False)
class Reranking(System):
    """A reranker that reorders the first documents of a system's rankings, and can teach other models by its scores.

    With `priors`, documents are ordered by a weighted sum of the reranker's scores and theirs. A split fits the
    weights. Each half of that split is ranked with the weights that the other half fits. A subclass says where the
    reranker's scores come from.
    """

    label: str
    """Beginning of its steps' labels."""
    data: Step
    over: System
    """The system whose rankings are reordered."""
    depth: RerankConfig
    priors: Mapping[str, System] = field(default_factory=dict)
    """Systems whose scores are added to the reranker's, by the names of their weights."""
    fit_on: str | None = None
    """Split that fits the weights and decides on gates."""
    with_split: bool = True
    """True if labels of steps name the split."""
    before: tuple["Reranking", ...] = ()
    """Earlier rerankings by the same reranker, whose scores need not be paid for again."""

    expense = 4

    @abstractmethod
    def reranked(self, split: str) -> Step:
        """Return the step that ranks a split's queries by the reranker's scores alone."""

    @abstractmethod
    def judged(self, label: str, groups: Step, config: ScoreConfig, before: Sequence[Step]) -> Step:
        """Return the step that adds the reranker's scores alone to groups. `before` are earlier such steps, whose
        scores need not be paid for again."""

    @property
    def parts(self) -> Sequence[System]:
        """The system that is reordered, and the priors."""
        return [self.over, *self.priors.values()]

    def ranking(self, split: str) -> Step:
        """Rank a split's queries in the reranker's order."""
        if not self.priors:
            return self.reranked(split)
        if split == self.fit_on:
            return self.weights
        return step(
            f"{self.label} with priors ({split})",
            add_prior,
            reranked=self.reranked(split),
            priors=self._prior_rankings(split),
            weights=self.weights,
            depth=self.depth.depth,
        )

    @property
    def weights(self) -> Step:
        """The step that fits the weights of the ranker's and the priors' scores."""
        split = self._fit_on
        return step(
            f"{self.label} weights",
            fit_prior,
            data=self.data,
            reranked=self.reranked(split),
            priors=self._prior_rankings(split),
            split=split,
            depth=self.depth.depth,
        )

    def gate(self, config: GateConfig, measure: str | None) -> Step:
        """Return the step that decides whether the ranker's order is better than the order that it reads."""
        split = self._fit_on
        return step(
            f"{self.label} gate",
            gate,
            data=self.data,
            ranking=self.over.ranking(split),
            reranked=self.ranking(split),
            split=split,
            measure=measure,
            config=config,
        )

    def weighted(self, label: str, judged: Step) -> Step:
        """Return the step that adds the priors' scores to groups that `judged` has scored."""
        if not self.priors:
            return judged
        priors = self._prior_rankings("train")
        return step(f"{label} with priors", teach_with_prior, groups=judged, priors=priors, weights=self.weights)

    def _prior_rankings(self, split: str) -> list[dict[str, Any]]:
        return [
            {"name": name, "ranking": prior.ranking(split), "lexical_k": prior.lexical_k}
            for name, prior in self.priors.items()
        ]

    @property
    def _fit_on(self) -> str:
        assert self.fit_on is not None  # a recipe's config sees to it
        return self.fit_on

    @property
    def chosen(self) -> list[Step]:
        """The step that fitted the weights, if there are any."""
        return [self.weights] if self.priors else []


@dataclass(frozen=True, eq=False, kw_only=True)
class Reranked(Reranking):
    """A ranker that reorders the first documents of a system's rankings."""

    ranker: Model

    stage = "ranker"

    def reranked(self, split: str) -> Step:
        """Rank a split's queries by the ranker's scores alone."""
        return step(
            f"{self.label} ({split})" if self.with_split else self.label,
            rerank,
            data=self.data,
            tokens=self.ranker.tokens,
            ranking=self.over.ranking(split),
            split=split,
            ranker=self.ranker.step,
            config=self.depth,
        )

    def judged(self, label: str, groups: Step, config: ScoreConfig, before: Sequence[Step]) -> Step:
        """Return the step that adds the ranker's scores alone to groups. Nothing is paid for, so `before` is not
        read."""
        return step(
            label,
            score_groups,
            data=self.data,
            tokens=self.ranker.tokens,
            groups=groups,
            ranker=self.ranker.step,
            config=config,
        )

    def cost(self, split: str) -> Cost:
        """The parts, the ranker, and the sum."""
        reranked, last = self.reranked(split), self.ranking(split)
        summed = () if last is reranked or not self.priors else (TimeSpent(last, over=reranked),)
        return super().cost(split) + Cost(rerank=(TimeSpent(reranked), *summed), models=(self.ranker.step,))

    @property
    def models(self) -> list[Step]:
        """The ranker."""
        return [self.ranker.step]

    def describe(self, name: str, store: "Store", names: Names) -> Stage:
        """Describe the ranker and the weights."""
        fitted = read_json(store.path(self.weights) / WEIGHTS) if self.priors else {RANKER: 1.0}
        return Stage(
            of=names(self.over),
            folder=path_for("ranker", name),
            own_code=(store.path(self.ranker.step) / "model" / RANKER_CODE).exists(),
            depth=self.depth.depth,
            precision=self.depth.precision,
            weight=fitted[RANKER],
            priors={names(prior): fitted[key] for key, prior in self.priors.items()},
        )

    def open(self, name: str, plan: "Plan", library: "Library") -> Any:
        """Open the ranker."""
        stage = plan.config.stages[name]
        assert isinstance(stage, Stage)
        return library.ranker(self.ranker.step, stage)

    def write(self, stage: Stage, folder: "Path", store: "Store") -> None:
        """Copy the ranker."""
        model_folder.copy(store.path(self.ranker.step) / "model", folder / stage.folder)
