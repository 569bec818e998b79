"""Retrieve with a dense retriever, and rerank what it retrieved."""

from dataclasses import dataclass

from workflows.stages.collection import Collection, Model
from workflows.stages.config import CollectionConfig
from workflows.steps.encode import encode
from workflows.steps.score import RerankConfig, rerank
from workflows.steps.search import faiss_index, search
from workflows.store.dag import Step, step


@dataclass(frozen=True)
class Retrieval:
    """A retriever with the vectors it made, an index over them where one is asked for, and its ranking."""

    model: Model
    vectors: Step
    index: Step | None
    ranking: Step

    @property
    def retriever(self) -> Step:
        """The step that wrote the retriever."""
        return self.model.step


def refresh(
    label: str, collection: Collection, retriever: Model, config: CollectionConfig, *, splits: list[str]
) -> Retrieval:
    """Encode the collection anew, and retrieve for the queries of some splits (Zhang et al., 2022, section 3.3)."""
    vectors = step(
        f"{label} vectors", encode, data=collection.data, tokens=retriever.tokens, retriever=retriever.step,
        splits=splits, config=config.encode,
    )  # fmt: skip
    index = None
    if config.search.index is not None:
        index = step(f"{label} index", faiss_index, vectors=vectors, factory=config.search.index)
    ranking = step(
        f"{label} ranking", search, data=collection.data, vectors=vectors, index=index, splits=splits, k=config.k,
        config=config.search,
    )  # fmt: skip
    return Retrieval(retriever, vectors, index, ranking)


def reranked(
    label: str, collection: Collection, ranking: Step, ranker: Model, config: CollectionConfig, depth: RerankConfig
) -> Step:
    """The measured queries' ranking in a ranker's order."""
    return step(
        label, rerank, data=collection.data, tokens=ranker.tokens, ranking=ranking, split=config.evaluate.split,
        ranker=ranker.step, config=depth,
    )  # fmt: skip
