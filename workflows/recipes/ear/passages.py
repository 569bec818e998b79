"""The passage reranker (Chuang et al., 2023, section 3.5)."""

from typing import Self

from sparring.workflows.recipes.ear.config import Passages
from sparring.workflows.recipes.ear.setting import PASSAGE_RERANKING, Setting
from sparring.workflows.stages.collection import Model
from sparring.workflows.stages.config import TrainingPhase
from sparring.workflows.stages.retrieval import reranked
from sparring.workflows.stages.training import train_model
from sparring.workflows.steps.ranked_pairs import ranked_pairs
from sparring.workflows.store.dag import Step, in_phase, step


class PassageReranker:
    """The passage reranker on one collection."""

    def __init__(self, setting: Setting, config: Passages, trained: Self | None = None) -> None:
        """`trained` is that of another collection whose model reranks here; None to train on this one."""
        self.config = config
        self._setting, self._trained = setting, trained
        self._start = setting.collection.initial_model("start passage reranker", config.model, objective="ranker")

    @in_phase(PASSAGE_RERANKING)
    def train(self, seed: int) -> Model:
        """The passage reranker, trained on the first passages of BM25's ranking."""
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
        """The passage reranker that reranks here."""
        return self._start.after((self._trained or self).train(seed).step)

    @in_phase(PASSAGE_RERANKING)
    def rerank(self, systems: dict[str, Step], seed: int) -> dict[str, Step]:
        """Some systems' rankings with their first passages in the reranker's order, at each depth."""
        ranker = self.ranker(seed)
        depths = [self.config.rerank.depth, *([self.config.other_depth] if self.config.other_depth else [])]
        rankings = {}
        for system, ranking in systems.items():
            for depth in depths:
                name = f"{system} + passages" + ("" if depth == self.config.rerank.depth else f" k={depth}")
                rankings[name] = reranked(
                    self._setting.label(name, seed),
                    self._setting.collection,
                    ranking,
                    ranker,
                    self._setting.config,
                    self.config.rerank.model_copy(update={"depth": depth}),
                )
        return rankings
