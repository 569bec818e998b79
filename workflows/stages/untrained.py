"""The systems that a user has without training."""

from collections.abc import Mapping
from functools import partial

from sparring.components.config import Invalid, listing
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.contender import FIRST, Contender
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import fused_with_bm25, refresh
from sparring.workflows.steps.imported_ranking import RankingFile, rank_from_file
from sparring.workflows.steps.score import RerankConfig
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.endpoints import RemoteDense, RemoteReranked
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import UNTRAINED
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.system import Computed, System

INTERPOLATED = FusionConfig(how="interpolate")
FUSIONS = {"reciprocal": FusionConfig(how="reciprocal"), "interpolated": INTERPOLATED}


@in_phase(UNTRAINED)
def start_retrieval(collection: Collection, start: Model, config: CollectionConfig) -> Dense:
    """Rankings of the start model from which the recipe trains."""
    return refresh("start", collection, start, config)


@in_phase(UNTRAINED)
def add_untrained(
    results: Results, start: Dense, model: DualEncoderConfig, *, seed: int, entropy: bool = False
) -> None:
    """Measure BM25, the start model as the recipe trains from it, the whole start model where the recipe cuts it, and
    BM25 fused with the model as it comes, the rankings of files, and contenders. `model` is the start model's
    config."""
    collection, config = results.collection, results.config
    name, whole = "start model", start
    results.add("BM25", collection.lexical, seed=seed)
    results.add(name, start, seed=seed, entropy=entropy)
    if model.layers is not None:
        uncut = model.model_copy(update={"layers": None})
        name = "whole start model"
        whole = refresh("whole start", collection, collection.initial_model("whole start retriever", uncut), config)
        results.add(name, whole, seed=seed, entropy=entropy)
    for method, fusion in FUSIONS.items():
        system = f"BM25 + {name}, {method}"
        results.add(system, fused_with_bm25(system, collection, whole, config, fusion), seed=seed)
    for system, imported in from_files(collection, config).items():
        results.add(system, imported, seed=seed)
    add_contenders(results, seed=seed)


@in_phase(UNTRAINED)
def add_contenders(results: Results, *, seed: int) -> None:
    """Measure the contenders, after the rows that they may rerank."""
    for name, contender in results.config.contenders.items():
        before = {row.name: row.system for row in results.rows if row.seed == seed and row.system is not None}
        system = _contending(name, contender, results.collection, results.config, before)
        results.add(name, system, seed=seed, queries=contender.queries, contender=True)


def _contending(
    name: str, contender: Contender, collection: Collection, config: CollectionConfig, before: Mapping[str, System]
) -> System:
    """Return a contender's system, over the row that it names among the rows before it."""
    if contender.embedder is not None:
        embedder = collection.model_as_it_comes(f"{name} embedder", contender.embedder)
        first: System = refresh(name, collection, embedder, config.model_copy(update={"search": SearchConfig()}))
    elif contender.embedder_url is not None:
        first = RemoteDense(
            name,
            collection.data,
            config.k,
            config.encode,
            endpoint=contender.endpoint,
            price=contender.price,
            query_prompt=contender.query_prompt,
            document_prompt=contender.document_prompt,
        )
    elif (row := contender.of or FIRST) in before:
        first = before[row]
    else:
        raise Invalid(
            f"contenders: {name}: of: no row before it is called {row!r}; accepted: {listing(before)}",
            "unknown-name",
            f"contenders.{name}.of",
        )
    depth = RerankConfig(depth=contender.depth, queries=contender.queries)
    if contender.rerank_url is not None or contender.chat_url is not None:
        return RemoteReranked(
            name,
            collection.data,
            first,
            depth,
            endpoint=contender.endpoint,
            price=contender.price,
            by_prompt=contender.chat_url is not None,
        )
    if contender.reranker is None:
        return first
    ranker = collection.model_as_it_comes(f"{name} reranker", contender.reranker, objective="ranker")
    return Reranked(name, collection.data, first, depth, ranker=ranker)


def from_files(collection: Collection, config: CollectionConfig) -> dict[str, Computed]:
    """Import the rankings of the measured split that files have, by system."""
    return {
        system: Computed(
            partial(_from_file, system, collection, config, file),
            "was read from a file",
            only=file.split,
            is_imported=True,
        )
        for system, file in config.evaluate.other_rankings.items()
        if file.split == config.evaluate.split
    }


def _from_file(system: str, collection: Collection, config: CollectionConfig, file: RankingFile, split: str) -> Step:
    return step(
        f"{system} ranking",
        rank_from_file,
        data=collection.data,
        split=split,
        k=config.k,
        config=file.model_copy(update={"ids": file.ids or config.data.ids}),
    )
