"""Rankings of a collection's retriever: alone, with BM25, and reranked by neighbours."""

from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.steps.choose_neighbours import ChooseConfig, TrialsConfig
from sparring.workflows.steps.encode import encode_documents
from sparring.workflows.store.dag import step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.neighbours import ByNeighbours


def refresh(label: str, collection: Collection, retriever: Model, config: CollectionConfig) -> Dense:
    """Encode the collection anew, to retrieve from it (Zhang et al., 2022, section 3.3)."""
    vectors = step(
        f"{label} vectors",
        encode_documents,
        data=collection.data,
        tokens=retriever.tokens,
        retriever=retriever.step,
        config=config.encode,
    )
    dense = Dense(
        label, collection.data, retriever, vectors, None, k=config.k, encode=config.encode, search=config.search
    )
    return dense.searching(config.search)


def fused_with_bm25(
    label: str, collection: Collection, dense: Dense, config: CollectionConfig, fusion: FusionConfig
) -> Fused:
    """Fuse BM25's rankings with a retriever's. The split `evaluate.select` chooses the numbers. Without that split
    they are those of `fusion`."""
    evaluate = config.evaluate
    choose = None if evaluate.select is None or evaluate.select_by is None else (evaluate.select, evaluate.select_by)
    fusion = fusion.model_copy(update={"depth": config.k})
    return Fused(label, collection.data, [collection.lexical, dense], fusion, choose)


def by_neighbours(dense: Dense, config: CollectionConfig, trials: TrialsConfig) -> ByNeighbours:
    """Rerank a retriever's rankings by neighbours, with the numbers that are best on the split that `evaluate.select`
    names. Of that split itself each query is reranked with what is best for others."""
    evaluate = config.evaluate
    assert evaluate.select is not None
    assert evaluate.select_by is not None
    choose = ChooseConfig(**trials.model_dump(), split=None, measure=evaluate.select_by)
    return ByNeighbours(f"{dense.label} by neighbours", dense, choose, evaluate.select)
