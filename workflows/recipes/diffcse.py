"""SimCSE or DiffCSE: an encoder of sentences that learns from a collection's own texts, and DPR with DiffCSE on its
queries (Chuang et al., 2022; sections 2.3 and 2.7).

Retrieval is measured here. The recipe `sentences` measures the last encoder on sets with labels: give it this file as
its `experiment`.
"""

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import model_validator

from components.models.configs import DualEncoderConfig
from components.retrieval.screening import ScreenConfig
from components.training.config import TrainConfig
from components.training.pretraining import DifferenceConfig, ProjectorConfig
from workflows.stages.collection import Collection
from workflows.stages.config import RetrievalConfig, TrainingPhase, seeded
from workflows.stages.pretraining import GeneratorPhase, generator, learnt
from workflows.stages.results import Outcome, Results, note_on
from workflows.stages.retrieval import refresh
from workflows.stages.training import phase
from workflows.stages.untrained import add_untrained
from workflows.steps.mine import MineConfig


class Config(RetrievalConfig):
    """A collection, an encoder, and what it learns from texts and from queries."""

    recipe: Literal["diffcse"]
    retriever: DualEncoderConfig
    objective: Literal["simcse", "diffcse"] = "diffcse"
    """What is learnt from texts."""
    projector: ProjectorConfig | None = None
    """Null for `tanh` in SimCSE and `batchnorm` in DiffCSE."""
    difference: DifferenceConfig = DifferenceConfig()
    generator: GeneratorPhase | None = None
    """What edits texts. Null where nothing is predicted of edits, or tokens are masked."""
    pretrain: TrainConfig | None = None
    """The training on texts. Null for none."""
    negatives: MineConfig = MineConfig(negatives=1)
    """Hard negatives of a group, from BM25's ranking. `negatives: 0` for in-batch ones alone."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking. Null leaves out judged documents and copies of them alone."""
    train: TrainConfig | None = None
    """The training on labelled queries, after that on texts. With losses over `query discriminator` and `document
    discriminator` it is DPR with DiffCSE, and measured beside the same training without them. Null for none."""

    @property
    def edited(self) -> bool:
        """Whether the training on queries predicts edits."""
        return self.train is not None and self.plain(self.train) != self.train

    def plain(self, train: TrainConfig) -> TrainConfig:
        """A training without the losses over edits."""
        losses = [term for term in train.losses if not term.over.endswith("discriminator")]
        return train.model_copy(update={"losses": losses})

    @model_validator(mode="after")
    def _has_what_it_asks(self) -> Self:
        if self.pretrain is None and self.train is None:
            raise ValueError("pretrain: there is nothing to learn; accepted: a training here, or in `train`")
        if self.train is not None and not self.plain(self.train).losses:
            raise ValueError("train: losses: all are over edits; accepted: a loss of retrieval too")
        edits = (self.pretrain is not None and self.objective == "diffcse") or self.edited
        if (self.generator is not None) != (edits and self.difference.task != "masked"):
            raise ValueError("generator: edited texts want one, and nothing else does")
        return self


def build(config: Config) -> Outcome:
    """Train one encoder a seed on texts, and then on queries with and without edits; measure all of them."""
    collection = Collection(config)
    begun = collection.initial_model("start retriever", config.retriever)
    results, split = Results(collection, config), config.evaluate.split
    untrained = last = refresh("start", collection, begun, config)
    comparisons = [("start model", "BM25")]
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever, seed=seed)
        model = begun
        own: dict[str, Any] = {"difference": config.difference}
        if config.generator is not None:
            own["generator"] = generator(collection, begun, config.generator, config, seed)
        if config.pretrain is not None:
            how: dict[str, Any] = {} if config.projector is None else {"projector": config.projector}
            label = seeded("pre-training", seed, config)
            model = begun.after(
                learnt(
                    label, collection, begun, config.objective, begun.step, config=config.pretrain, seed=seed,
                    **how, **(own if config.objective == "diffcse" else {}),
                )
            )  # fmt: skip
            last = refresh(seeded("pre-trained", seed, config), collection, model, config)
            results.add("pre-trained", last.ranking(split), retrieval=last, seed=seed)
        trainings: dict[str, tuple[TrainConfig, str, dict[str, Any]]] = {}
        if config.train is not None:
            trainings["retriever"] = (config.plain(config.train), "retriever", {})
            if config.edited:
                trainings = {"retriever without edits": trainings["retriever"]}
                trainings["retriever"] = (config.train, "diffcse_retriever", own)
        for name, (train, objective, given) in trainings.items():
            trained = phase(
                seeded(name, seed, config), collection, replace(model, objective=objective), seed=[seed, "retriever"],
                config=TrainingPhase(screen=config.screen, mine=config.negatives, train=train),
                rankings=collection.bm25 if config.negatives.negatives > 0 else None, part="retriever training",
                **given,
            )  # fmt: skip
            last = refresh(seeded(name, seed, config), collection, model.after(trained.step), config)
            results.add(name, last.ranking(split), retrieval=last, seed=seed)
    if config.pretrain is not None:
        comparisons.insert(0, ("pre-trained", "start model"))
    if config.train is not None:
        comparisons = [("retriever", "start model"), ("retriever", "BM25"), *comparisons]
    if config.edited:
        comparisons.insert(0, ("retriever", "retriever without edits"))
    return Outcome(
        results=results.gather(comparisons), data=collection.data, systems=results.systems, retrieval=last,
        ranker=None, split=split, note=note_on(config.retriever.model),
    )  # fmt: skip
