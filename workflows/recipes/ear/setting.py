"""Parts that all of EAR shares: a collection, its start retriever, BM25, and the fusion of rankings."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.recipes.ear.config import Config
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import seeded
from sparring.workflows.stages.training import splits_for
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.lucene import lucene_search
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.model import Model

EXPANSIONS, QUERY_RERANKING, PASSAGE_RERANKING = "expansions", "query reranking", "passage reranking"
READING = "reading"
"""Phases of an experiment that only EAR has."""


@dataclass(frozen=True)
class Setting:
    """One collection, with the experiment's config."""

    config: Config
    collection: Collection
    retriever: Model
    """The start retriever."""
    learning: tuple[str, ...]
    """Splits that models are trained and validated on. If no model is trained here, there are none."""
    split: str
    """Split whose queries are ranked."""

    @property
    def bm25(self) -> Step:
        """BM25's ranking of the split's queries."""
        return self.collection.bm25(self.split)

    def bm25_for(self, *splits: str) -> Step:
        """Return BM25's ranking of the queries of some splits. All splits that models learn from share one ranking."""
        return self.collection.bm25(*(self.learning if {*splits} <= {*self.learning} else splits))

    @property
    def learning_splits(self) -> list[str]:
        """Splits that query rerankers learn from and are validated on."""
        return splits_for(*self.config.reranker_trainings())

    def label(self, text: str, seed: int) -> str:
        """Return a step's label, with the seed if there are several."""
        return seeded(text, seed, self.config)

    def retrieve(self, label: str, expanded: Step, splits: list[str]) -> Step:
        """Rank the documents for expanded queries by BM25."""
        return step(
            label,
            lucene_search,
            data=expanded,
            index=self.collection.bm25_index,
            splits=splits,
            k=self.config.k,
            config=self.config.bm25.search,
        )

    def fused(
        self, label: str, rankings: list[Step], config: FusionConfig | None = None, *, lexical: Sequence[int]
    ) -> Step:
        """Fuse several rankings of the split's queries (Appendix B.3). `lexical` has the places, from 0, of BM25's
        rankings."""
        if len(rankings) == 1:
            return rankings[0]
        return step(
            f"{label} fused",
            fuse,
            data=self.collection.data,
            rankings=rankings,
            split=self.split,
            config=self.fusion(config or self.config.fusion, lists=len(rankings)),
            lexical=list(lexical),
        )

    def fusion(self, config: FusionConfig, *, lists: int | None = None) -> FusionConfig:
        """Return the fusion of `lists` rankings. If `lists` is None, there are as many as a query has expansions. Only
        the second of two has a weight."""
        fusion = FusionConfig(**config.model_dump(include=set(FusionConfig.model_fields))).reaching(self.config.k)
        return fusion if lists == 2 else fusion.model_copy(update={"weight": 0.5})


def setting(config: Config, split: str, *, training: bool) -> Setting:
    """Read a collection whose `split` is ranked. With `training`, models learn from its other splits."""
    collection = Collection(config)
    retriever = collection.initial_model("start retriever", config.retriever)
    trainings = [*config.reranker_trainings(), config.train]
    return Setting(config, collection, retriever, tuple(splits_for(*trainings)) if training else (), split)
