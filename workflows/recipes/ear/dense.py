"""The dense retriever: fused with a ranking, or searching with chosen expansions (Chuang et al., 2023, section
3.6.2)."""

from dataclasses import dataclass, replace
from typing import Self

from sparring.workflows.recipes.ear.generators import Expansions
from sparring.workflows.recipes.ear.setting import Setting
from sparring.workflows.stages.config import TrainingPhase
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.stages.training import phase
from sparring.workflows.steps.expand import chosen_queries
from sparring.workflows.steps.tokenize import tokenize_queries
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import TRAINING
from sparring.workflows.systems.system import System


@dataclass(frozen=True)
class DenseRetriever:
    """The dense retriever on one collection."""

    setting: Setting
    trained: Self | None = None
    """The dense retriever of another collection, whose model retrieves here. If None, train on this collection."""

    @in_phase(TRAINING)
    def train(self, seed: int) -> Model:
        """Return the dense retriever, trained if the config asks for it."""
        config = self.setting.config
        if config.train is None:
            return self.setting.retriever
        return phase(
            self.setting.label("retriever", seed),
            self.setting.collection,
            self.setting.retriever,
            rankings=self.setting.bm25_for if config.negatives.negatives > 0 else None,
            seed=[seed, "retriever"],
            config=TrainingPhase(screen=config.screen, mine=config.negatives, train=config.train),
        )

    @in_phase(TRAINING)
    def retrieve(self, seed: int) -> Dense:
        """Retrieve for the measured queries."""
        config = self.setting.config
        retriever = self.setting.retriever.after((self.trained or self).train(seed).step)
        label = "start" if config.train is None else self.setting.label("retriever", seed)
        return refresh(label, self.setting.collection, retriever, config)

    def approximate(self, exact: Dense, seed: int) -> Dense | None:
        """Search the same vectors with an approximate index. Return None if the config asks for none."""
        config = self.setting.config
        if config.hnsw is None:
            return None
        label = self.setting.label(config.hnsw, seed) if config.train is not None else config.hnsw
        search = config.search.model_copy(update={"index": config.hnsw})
        return replace(exact, label=label).searching(search, variant=True)

    def fused_with(self, name: str, system: System, retrieval: Dense, seed: int) -> Fused:
        """Fuse a system's rankings with the dense retriever's."""
        fusion = self.setting.fusion(self.setting.config.dense_fusion, lists=2)
        label = f"{self.setting.label(f'{name} + dense', seed)} fused"
        return Fused(label, self.setting.collection.data, [system, retrieval], fusion, with_split=False)

    def issue(self, label: str, expansions: dict[str, Expansions], choices: list[Step], retrieval: Dense) -> Step:
        """Rank with the chosen expansions by the dense retriever, and fuse over generators."""
        retriever, rankings = retrieval.model, []
        for name, choice in zip(expansions, choices, strict=True):
            title = f"{name} {label} issued to dense"
            queries = step(
                f"{title} queries",
                chosen_queries,
                data=self.setting.collection.data,
                choices=choice,
                split=self.setting.split,
            )
            tokens = step(
                f"{title} tokens",
                tokenize_queries,
                data=queries,
                model=retriever.step,
                documents=retriever.tokens,
                config=self.setting.config.tokens,
            )
            of_choices = replace(retrieval, label=title, data=queries, model=replace(retriever, tokens=tokens))
            rankings.append(of_choices.ranking(self.setting.split))
        return self.setting.fused(f"{label} issued to dense", rankings, lexical=[])
