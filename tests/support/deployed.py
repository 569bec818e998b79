"""A recipe whose systems have every stage that an exported one may have, and some that none has; nothing is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import RetrievalConfig
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import fused_with_bm25, refresh
from sparring.workflows.steps.score import RerankConfig
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.neighbours import ByNeighbours
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.rows import Outcome
from sparring.workflows.systems.system import Computed, System
from tests.support import tiny

FUSED, MIXED, NEIGHBOURS = "ranker over fusion", "ranker over mixture", "retriever by neighbours"
THREE, TWICE, OVER_NEIGHBOURS = "three lists", "ranker again", "ranker over neighbours"
WEIGHED = "neighbours by exponents"
PRIOR = "ranker beside others"
COMPUTED = "by steps of its own"


class Config(RetrievalConfig):
    """A collection and two models."""

    recipe: Literal["tests.support.deployed"]
    retriever: DualEncoderConfig
    ranker: CrossEncoderConfig
    rerank: RerankConfig


def build(config: Config) -> Outcome:
    """Lists, both fusions of them, a ranker over these; neighbours, and what cannot be deployed."""
    collection, split = Collection(config), config.evaluate.split
    results, data = Results(collection, config), collection.data
    model = collection.initial_model("start retriever", config.retriever)
    ranker = collection.initial_model("start ranker", config.ranker, objective="ranker")
    retriever = refresh("retriever", collection, model, config)
    words = collection.lexical
    fusion = Fused("fusion", data, [words, retriever], FusionConfig(how="reciprocal"), with_split=False)
    interpolation = FusionConfig(how="interpolate", weight=0.3)
    mixed = fused_with_bm25("mixture", collection, retriever, config, interpolation)
    near = NeighboursRerankConfig(k=5, context=10)
    neighbours = ByNeighbours(NEIGHBOURS, retriever, near, with_split=False)
    other_words = replace(words, config=words.config.model_copy(update={"k1": 2.0, "b": 0.1}))
    three = Fused(THREE, data, [other_words, words, neighbours], FusionConfig(how="interpolate"), with_split=False)

    def over(label: str, system: System) -> Reranked:
        return Reranked(label, data, system, config.rerank, with_split=False, ranker=ranker)

    priors: dict[str, System] = {"retriever": retriever, "bm25": words}
    fused = over(FUSED, fusion)
    systems = {
        "retriever": retriever,
        "BM25": words,
        "fusion": fusion,
        "mixture": mixed,
        THREE: three,
        TWICE: over(TWICE, fused),
        PRIOR: Reranked(PRIOR, data, retriever, config.rerank, priors, config.evaluate.select, ranker=ranker),
        NEIGHBOURS: neighbours,
        WEIGHED: replace(neighbours, label=WEIGHED, config=near.model_copy(update={"weight": "exp"})),
        COMPUTED: Computed(fusion.ranking, "is made of its own steps"),
        FUSED: fused,
        MIXED: over(MIXED, mixed),
        "ranker over retriever": over("ranker over retriever", retriever),
        OVER_NEIGHBOURS: over(OVER_NEIGHBOURS, neighbours),
    }
    for name, system in systems.items():
        results.add(name, system, seed=1)
    return Outcome(
        results=results.gather([]),
        data=data,
        rows=results.rows,
        retrieval=retriever,
        ranker=ranker.step,
        split=split,
        note="The start model is made of noise.",
    )


def config(beir: Any, encoder: Any) -> dict[str, Any]:
    """The config as a file has it: queries are cut shorter than documents, and have a prompt."""
    small = tiny.ar2(beir, encoder)
    return {
        "recipe": "tests.support.deployed",
        **{key: small[key] for key in ("data", "k", "encode", "rerank")},
        "retriever": {**small["retriever"]["model"], "query_prompt": "bara: "},
        "ranker": {**small["ranker"]["model"], "pooling": "maxsim"},
    }
