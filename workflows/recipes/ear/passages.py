"""The passage reranker (Chuang et al., 2023, section 3.5)."""

from typing import Self

from sparring.workflows.recipes.ear.config import Passages
from sparring.workflows.recipes.ear.setting import PASSAGE_RERANKING, Setting
from sparring.workflows.stages.config import TrainingPhase
from sparring.workflows.stages.training import train_model
from sparring.workflows.steps.ranked_pairs import ranked_pairs
from sparring.workflows.store.dag import in_phase, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.system import System


class PassageReranker:
    """The passage reranker on one collection."""

    def __init__(self, setting: Setting, config: Passages, trained: Self | None = None) -> None:
        """If `trained` is the passage reranker of another collection, its model reranks here. If None, train on this
        collection."""
        self.config = config
        self._setting, self._trained = setting, trained
        self._start = setting.collection.initial_model("start passage reranker", config.model, objective="ranker")

    @in_phase(PASSAGE_RERANKING)
    def train(self, seed: int) -> Model:
        """Train the passage reranker on the first passages of BM25's ranking."""
        setting, config, part = self._setting, self.config, [seed, "passage reranker"]
        label, collection = setting.label("passage reranker", seed), setting.collection
        ranking, by_answer = setting.bm25_for("train"), setting.config.relevant_by == "answers"
        pairs = step(
            f"{label} groups",
            ranked_pairs,
            data=collection.data,
            split="train",
            by_answer=by_answer,
            ranking=collection.answering(ranking, ["train"]) if by_answer else ranking,
            depth=config.depth,
            groups=config.train.updates * config.train.batch,
            seed=part,
        )
        return train_model(
            label,
            collection,
            self._start,
            rows=pairs,
            rankings=setting.bm25_for,
            seed=part,
            config=TrainingPhase(mine=config.mining, train=config.train),
        )

    def ranker(self, seed: int) -> Model:
        """Return the passage reranker that reranks here."""
        return self._start.after((self._trained or self).train(seed).step)

    def rerank(self, systems: dict[str, System], seed: int) -> dict[str, Reranked]:
        """Rerank the first passages of some systems, at each depth."""
        ranker = self.ranker(seed)
        depths = [self.config.rerank.depth, *([self.config.other_depth] if self.config.other_depth else [])]
        reranked = {}
        for system, over in systems.items():
            for depth in depths:
                name = f"{system} + passages" + ("" if depth == self.config.rerank.depth else f" k={depth}")
                reranked[name] = Reranked(
                    self._setting.label(name, seed),
                    self._setting.collection.data,
                    over,
                    self.config.rerank.model_copy(update={"depth": depth}),
                    ranker=ranker,
                    with_split=False,
                )
        return reranked
