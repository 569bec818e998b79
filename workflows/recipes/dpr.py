"""DPR: a dual encoder trained with in-batch negatives, and optionally with BM25's hard negatives (Karpukhin et al.,
2020)."""

from typing import Literal, Self

from pydantic import model_validator

from sparring.components.retrieval.kind import RetrieverConfig
from sparring.components.retrieval.screening import ScreenConfig
from sparring.components.training.config import TrainConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import (
    DifferenceKeys,
    TrainingPhase,
    check_candidates,
    check_difference,
    predicts_differences,
    seeded,
)
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.sizes import Sizes, SizesKey
from sparring.workflows.stages.starting import StartedConfig, started
from sparring.workflows.stages.teacher import check_teacher, contender_named, teacher_by
from sparring.workflows.stages.training import mined_k, mining, phase
from sparring.workflows.stages.untrained import add_untrained, start_retrieval
from sparring.workflows.steps.mine import MineConfig
from sparring.workflows.steps.score import ScoreConfig
from sparring.workflows.store.dag import in_phase
from sparring.workflows.systems.phases import TRAINING
from sparring.workflows.systems.rows import Outcome, note_on


class Config(StartedConfig, DifferenceKeys, SizesKey):
    """A collection and a retriever."""

    recipe: Literal["dpr"]
    retriever: RetrieverConfig
    negatives: MineConfig = MineConfig(negatives=1)
    """Hard negatives of a group, from BM25's ranking. `negatives: 0` uses in-batch negatives alone."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking. Null leaves out only judged documents and copies of them."""
    train: TrainConfig | None = None
    """Training of the retriever. Null trains nothing, and measures the start model."""
    second_stage: TrainConfig | None = None
    """Second stage, which begins with the weights of the first, on groups of its own. In PAIR it has the plain loss
    (Ren et al., 2021). The model after it is measured. Null has one stage."""

    def phase(self, training: TrainConfig) -> TrainingPhase:
        """Return a stage's groups and training."""
        keys = {"difference": self.difference, "generator": self.generator} if predicts_differences(training) else {}
        return TrainingPhase(screen=self.screen, mine=self.negatives, train=training, **keys)

    @model_validator(mode="after")
    def _first(self) -> Self:
        if self.second_stage is not None and self.train is None:
            raise ValueError("second_stage: it needs a first stage; set `train`")
        for key in ("pretrain", "start_from"):
            if getattr(self, key) is not None and self.train is None:
                raise ValueError(f"{key}: a training begins from it, and there is no training; set `train`")
        stages = (self.train, self.second_stage)
        reads = any(train is not None and train.reads_teacher for train in stages)
        check_teacher(self.teacher, self.contenders, reads=reads)
        check_difference(self.difference, self.train, self.second_stage)
        check_candidates(self.negatives, self.train, self.second_stage)
        return self


def build(config: Config) -> Outcome:
    """Train one retriever per seed, and measure it next to systems that need no training."""
    collection = Collection(config)
    start = collection.initial_model("start retriever", config.retriever)
    results = Results(collection, config)
    split = config.evaluate.split
    untrained = last = start_retrieval(collection, start, config)
    sizes = Sizes(results)
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever, seed=seed, entropy=True)
        teacher = None
        if config.teacher is not None:
            teacher = teacher_by(contender_named(config.teacher, results, seed), ScoreConfig(), [])
        if config.train is not None:
            retriever = started(results, collection, untrained, config, seed).model
            stages = {"retriever": config.train, "retriever, second stage": config.second_stage}
            with in_phase(TRAINING):
                for stage, training in stages.items():
                    if training is not None:
                        config_of_phase = config.phase(training)
                        negatives = mining(collection.lexical, mined_k(config.k, config_of_phase))
                        retriever = phase(
                            seeded(stage, seed, config),
                            collection,
                            retriever,
                            rankings=negatives if config.negatives.negatives > 0 else None,
                            seed=[seed, stage],
                            config=config_of_phase,
                            teacher=teacher,
                        )
                last = results.refresh("retriever", retriever, seed=seed, entropy=True)
        sizes.add("start model" if config.train is None else "retriever", last, config.sizes, seed=seed)

    comparisons = [("start model", "BM25")]
    if config.train is not None:
        comparisons = [("retriever", "start model"), ("retriever", "BM25"), *comparisons]  # the first may lead
    return Outcome(
        results=results.gather(comparisons),
        data=collection.data,
        rows=results.rows,
        retrieval=last,
        split=split,
        note=note_on(config.retriever.model),
        pictures=sizes.table(),
    )
