"""Retrieve with a dense retriever, rerank what it retrieved, and fuse rankings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.quantised import Kind
from sparring.workflows.stages.collection import Collection, Model
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.steps.choose_neighbours import ChooseConfig, TrialsConfig, chosen
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.fit_fusion import fit_fusion
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.quantise import rescore, smaller_vectors
from sparring.workflows.steps.score import RerankConfig, rerank
from sparring.workflows.steps.search import SearchConfig, build_index, candidates, search
from sparring.workflows.store.dag import Step, step

Rankings = Callable[[str], Step]
"""The ranking of a split's queries."""


@dataclass(frozen=True)
class Retrieval:
    """A retriever with the documents' vectors, an index over them where one is asked for, and its rankings.

    Each split's queries are encoded and ranked by steps of their own, so that what depends on one split's ranking, such
    as a training, does not depend on which others are ranked. Only rankings that something takes are made.
    """

    label: str
    """How the labels of its steps begin."""
    data: Step
    """The collection."""
    model: Model
    vectors: Step
    """The documents'."""
    index: Step | None
    k: int
    """Documents retrieved for a query."""
    encode: EncodeConfig
    search: SearchConfig
    size: str = ""
    """What its rankings are called beside those of the same vectors that are searched in another way."""

    @property
    def searched(self) -> Step:
        """The vectors that are searched: the encoded ones, or smaller ones that are made of them."""
        return self._smaller(self.search.vectors)

    @property
    def rescored_by(self) -> Step | None:
        """The vectors that candidates are ordered by, where they are."""
        if self.search.rescore is None:
            return None
        return self.vectors if self.search.rescore_by == "encoded" else self._smaller(self.search.rescore_by)

    @property
    def _name(self) -> str:
        return f"{self.label}, {self.size}" if self.size else self.label

    def _smaller(self, kind: Kind) -> Step:
        dimensions = self.search.dimensions
        if kind == "encoded" and dimensions is None:
            return self.vectors
        size = "" if dimensions is None else f" of {dimensions} dimensions"
        return step(
            f"{self.label} {'' if kind == 'encoded' else f'{kind} '}vectors{size}",
            smaller_vectors,
            vectors=self.vectors,
            retriever=self.model.step,
            dimensions=dimensions,
            kind=kind,
        )

    def searching(self, search: SearchConfig, size: str = "") -> "Retrieval":
        """The same encoded vectors searched in another way; nothing is encoded anew."""
        own, dimensions = replace(self, search=search, index=None, size=size), self.model.dimensions
        if dimensions is not None and (wrong := search.unfit(dimensions)):
            raise ValueError(f"search: {wrong}")
        if search.index is None:
            return own
        index = step(
            f"{own._name} index",
            build_index,
            vectors=own.searched,
            factory=search.index,
            ef_construction=search.ef_construction,
            kind=self.model.kind,
        )
        return replace(own, index=index)

    @property
    def needed(self) -> list[Step]:
        """The vectors or the index that are searched, and the vectors that candidates are ordered by. Of vectors behind
        an index it is only asked how they were cut, which is never dropped."""
        found = [self.searched] if self.index is None or self.searched is not self.vectors else []
        return [one for one in (*found, self.index, self.rescored_by) if one is not None]

    @property
    def retriever(self) -> Step:
        """The step that wrote the retriever."""
        return self.model.step

    def queries(self, split: str) -> Step:
        """The vectors of a split's queries."""
        return step(
            f"{self.label} queries ({split})",
            encode_queries,
            data=self.data,
            tokens=self.model.tokens,
            retriever=self.model.step,
            split=split,
            config=self.encode,
        )

    def found(self, split: str) -> Step:
        """What the search finds for a split's queries: the ranking, or candidates for it."""
        inputs: dict[str, Any] = {
            "data": self.data,
            "vectors": self.searched,
            "queries": self.queries(split),
            "index": self.index,
            "k": self.k,
            "config": self.search.of_candidates(),
        }
        if self.search.rescore is None:
            return step(f"{self._name} ranking ({split})", search, **inputs)
        return step(f"{self._name} candidates ({split})", candidates, times=self.search.rescore, **inputs)

    def ranking(self, split: str) -> Step:
        """The ranking of a split's queries."""
        found = self.found(split)
        if self.rescored_by is None:
            return found
        return step(
            f"{self._name} ranking ({split})",
            rescore,
            data=self.data,
            vectors=self.rescored_by,
            queries=self.queries(split),
            ranking=found,
            k=self.k,
        )


def refresh(label: str, collection: Collection, retriever: Model, config: CollectionConfig) -> Retrieval:
    """Encode the collection anew, to retrieve from it (Zhang et al., 2022, section 3.3)."""
    vectors = step(
        f"{label} vectors",
        encode_documents,
        data=collection.data,
        tokens=retriever.tokens,
        retriever=retriever.step,
        config=config.encode,
    )
    retrieval = Retrieval(
        label, collection.data, retriever, vectors, None, k=config.k, encode=config.encode, search=config.search
    )
    return retrieval.searching(config.search)


def reranked(
    label: str, collection: Collection, ranking: Step, ranker: Model, config: CollectionConfig, depth: RerankConfig
) -> Step:
    """The measured queries' ranking in a ranker's order."""
    return step(
        label,
        rerank,
        data=collection.data,
        tokens=ranker.tokens,
        ranking=ranking,
        split=config.evaluate.split,
        ranker=ranker.step,
        config=depth,
    )


def fused_with_bm25(
    label: str, collection: Collection, other: Rankings, config: CollectionConfig, how: FusionConfig
) -> Rankings:
    """Fuse BM25's ranking with another, with the numbers that are best on the split that `evaluate.select` names;
    without one as `how` says. Of that split itself each half of the queries is fused with what is best for the other.
    """
    asked, rankings, lexical = config.evaluate, [collection.bm25, other], [0]
    how = how.model_copy(update={"depth": config.k})
    chosen: FusionConfig | Step = how
    if asked.select is not None and asked.select_by is not None:
        chosen = step(
            f"{label} weights",
            fit_fusion,
            data=collection.data,
            rankings=[of(asked.select) for of in rankings],
            split=asked.select,
            measure=asked.select_by,
            config=how,
            lexical=lexical,
        )

    def ranking(split: str) -> Step:
        if isinstance(chosen, Step) and split == asked.select:
            return chosen
        return step(
            f"{label} ({split})",
            fuse,
            data=collection.data,
            rankings=[of(split) for of in rankings],
            split=split,
            config=chosen,
            lexical=lexical,
        )

    return ranking


def by_neighbours(retrieval: Retrieval, config: CollectionConfig, trials: TrialsConfig) -> Step:
    """The measured queries' ranking reranked by neighbours, with the numbers that are best on the split that
    `evaluate.select` names. Of that split itself each query is reranked with what is best for others."""
    asked, label = config.evaluate, f"{retrieval.label} by neighbours"
    assert asked.select is not None
    assert asked.select_by is not None
    choice = step(
        f"{label} numbers",
        chosen,
        data=retrieval.data,
        vectors=retrieval.vectors,
        queries=[retrieval.queries(asked.select)],
        rankings=[retrieval.ranking(asked.select)],
        split=asked.select,
        config=ChooseConfig(**trials.model_dump(), split=None, measure=asked.select_by),
    )
    if asked.split == asked.select:
        return choice
    return step(
        f"{label} ({asked.split})",
        rerank_by_neighbours,
        data=retrieval.data,
        vectors=retrieval.vectors,
        queries=retrieval.queries(asked.split),
        ranking=retrieval.ranking(asked.split),
        config=choice,
    )
