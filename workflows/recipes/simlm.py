"""SimLM: pre-training on the collection's documents, and a pipeline of four trainings on its queries (Wang et al.,
2023). `Pipeline.run` is the paper's Figure 2."""

from dataclasses import dataclass
from typing import Any, Self

from pydantic import model_validator

from components.models.configs import CrossEncoderConfig, DualEncoderConfig
from components.training.config import HardestConfig
from workflows.stages.collection import Collection, Model
from workflows.stages.config import RetrievalConfig, TrainingPhase, seeded
from workflows.stages.pretraining import PretrainingPhase, pretrained
from workflows.stages.reranking import Reranking
from workflows.stages.results import Outcome, Results, note_on
from workflows.stages.retrieval import Rankings, Retrieval, refresh
from workflows.stages.training import ScreenInputs, mine_groups, phase, train_model
from workflows.stages.untrained import add_untrained
from workflows.steps.score import RerankConfig, ScoreConfig


class RankerPhase(TrainingPhase):
    """The ranker, and its training on negatives from retriever 2's ranking (Eq. 4)."""

    model: CrossEncoderConfig
    """Any pre-trained model: SimLM's pre-training is for retrievers, and the paper's ranker is ELECTRA."""
    hardest: HardestConfig | None = None
    """Learn from the hardest of a group's candidates alone, as the public code does. Null for all, as the paper
    says."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        candidates = 1 + self.mine.negatives + self.mine.random
        if self.hardest is not None and self.hardest.keep >= candidates:
            raise ValueError(f"hardest.keep: {self.hardest.keep} of a group's {candidates} candidates; accepted: fewer")
        if self.model.dropout == 0 and any(term.over == "passes" for term in self.train.losses):
            raise ValueError("losses: over: passes: two passes differ by dropout; accepted: a model.dropout above 0")
        return self


class Config(RetrievalConfig):
    """A retriever, what it learns from documents, and the stages of the pipeline.

    Each stage builds on those before it: a stage that is null leaves out those behind it too. Without pre-training the
    retrievers begin from the model as it is.
    """

    recipe: Literal["simlm"]
    retriever: DualEncoderConfig
    """The model that all three retrievers begin from, by way of the pre-training. No stage begins from another's
    weights: they hand on negatives and scores."""
    pretrain: PretrainingPhase | None = None
    """SimLM's pre-training, or one of its rivals. Null for none."""
    retriever_1: TrainingPhase | None = None
    """Negatives from BM25's ranking; with `mine: {negatives: 0}` in-batch ones alone."""
    retriever_2: TrainingPhase | None = None
    """Negatives from retriever 1's ranking."""
    ranker: RankerPhase | None = None
    """A cross encoder. Negatives from retriever 2's ranking."""
    distilled: TrainingPhase | None = None
    """A third retriever, which learns from the ranker's scores of groups that are mined from retriever 2's ranking. The
    paper's loss is `listwise.kl` over the group (Eq. 5) and, with weight alpha, `simlm.contrastive` over the batch."""
    score: ScoreConfig = ScoreConfig()
    """How the ranker scores the groups that it teaches by."""
    rerank: RerankConfig = RerankConfig()
    """What the ranker reranks where it is measured."""
    without_pretraining: bool = False
    """A control: train retriever 1 from the start model too, on the same groups (Table 7)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.without_pretraining and (self.pretrain is None or self.retriever_1 is None):
            raise ValueError("without_pretraining: retriever 1 with and without it; it needs pretrain and retriever_1")
        for key, stage in {"retriever_2": self.retriever_2, "distilled": self.distilled}.items():
            if stage is not None and stage.mine.negatives == 0:
                raise ValueError(f"{key}.mine.negatives: 0: the stage learns from mined negatives; accepted: 1 or more")
        return self


def build(config: Config) -> Outcome:
    """The graph: one pipeline a seed on one collection, and the results."""
    collection = Collection(config)
    begun = collection.initial_model("start retriever", config.retriever)
    results = Results(collection, config)
    last, ranker = refresh("start", collection, begun, config), None
    for seed in config.seeds:
        add_untrained(results, last if seed == config.seeds[0] else untrained, config.retriever, seed=seed)
    return Outcome(
        results=results.gather(comparisons(config)), data=collection.data, systems=results.systems, retrieval=last,
        ranker=ranker, split=config.evaluate.split, note=note_on(config.retriever.model),
    )  # fmt: skip
