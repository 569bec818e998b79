"""DPR: a dual encoder trained with in-batch negatives, and perhaps BM25's as hard ones (Karpukhin et al. 2020)."""

from typing import Literal, Self

from pydantic import model_validator

from components.model_configs import DualEncoderConfig
from components.screening import ScreenConfig
from components.train_config import TrainConfig
from workflows.board import Board, Outcome, note_on
from workflows.parts import Base, Collection, Phase, begin, phase, refresh, seeded, splits_for
from workflows.steps.mine import MineConfig


class Config(Base):
    """A collection and a retriever."""

    recipe: Literal["dpr"]
    retriever: DualEncoderConfig
    negatives: MineConfig = MineConfig(negatives=1)
    """Hard negatives of a group, out of BM25's ranking; `negatives: 0` for in-batch ones alone."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking; null for none beyond judged documents and copies."""
    train: TrainConfig | None = None
    """Null to measure the start model alone."""
    then: TrainConfig | None = None
    """A second stage, from the weights that the first ends with, on groups of its own: PAIR's has the plain loss (Ren
    et al. 2021). What it ends with is measured; null for one stage."""

    @model_validator(mode="after")
    def _first(self) -> Self:
        if self.then is not None and self.train is None:
            raise ValueError("then: a second stage wants a first: `train`")
        return self


def build(config: Config) -> Outcome:
    """Train one retriever a seed, and measure it beside BM25 and what it began from."""
    begun = begin("start retriever", config.retriever)
    collection = Collection(config, begun)
    board = Board(collection, config)
    test = [config.evaluate.split]

    hard = config.train is not None and config.negatives.negatives > 0
    lexical = collection.bm25([*splits_for(config.train, config.then), *test] if hard else test)
    untrained = found = refresh("start", collection, begun, config, splits=test)
    for seed in config.seeds:
        board.add("BM25", lexical, seed=seed)
        board.add("start model", untrained.ranking, seed=seed, entropy=True)
        if config.train is not None:
            retriever = begun
            for stage, training in {"retriever": config.train, "retriever, second stage": config.then}.items():
                if training is not None:
                    retriever = phase(
                        seeded(stage, seed, config), collection, "retriever", ranking=lexical if hard else None,
                        start=retriever, seed=[seed, stage],
                        config=Phase(screen=config.screen, mine=config.negatives, train=training),
                    )  # fmt: skip
            found = refresh(seeded("retriever", seed, config), collection, retriever, config, splits=test)
            board.add("retriever", found.ranking, seed=seed, entropy=True)

    comparisons = [("start model", "BM25")]
    if config.train is not None:
        comparisons += [("retriever", "BM25"), ("retriever", "start model")]
    return Outcome(
        results=board.results(comparisons), data=collection.data, found=found, ranker=None,
        rankings=board.rankings, split=config.evaluate.split, note=note_on(config.retriever.model),
    )  # fmt: skip
