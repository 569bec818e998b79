"""A recipe whose systems have every stage that an exported one may have, and some that none has; nothing is trained."""

from __future__ import annotations

from typing import Any, Literal

from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.prior import PriorConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import RetrievalConfig
from sparring.workflows.systems.reranked import Reranking
from sparring.workflows.stages.retrieval import fused_with_bm25, refresh, reranked
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.score import RerankConfig
from sparring.workflows.store.dag import step
from sparring.workflows.systems.rows import Outcome
from sparring.workflows.stages.results import Results
from tests.support import tiny

FUSED, MIXED, NEIGHBOURS = "ranker over fusion", "ranker over mixture", "retriever by neighbours"
WEIGHED = "neighbours by exponents"
PRIOR = "ranker beside others"


class Config(RetrievalConfig):
    """A collection and two models."""

    recipe: Literal["tests.support.deployed"]
    retriever: DualEncoderConfig
    ranker: CrossEncoderConfig
    rerank: RerankConfig


def build(config: Config) -> Outcome:
    """Lists, both fusions of them, a ranker over these; neighbours, and fusions of what cannot be deployed."""
    collection, split = Collection(config), config.evaluate.split
    results, data = Results(collection, config), collection.data
    retriever = collection.initial_model("start retriever", config.retriever)
    ranker = collection.initial_model("start ranker", config.ranker, objective="ranker")
    retrieval = refresh("retriever", collection, retriever, config)
    words, near = collection.bm25(split), retrieval.ranking(split)
    fusion = step(
        "fusion",
        fuse,
        data=data,
        rankings=[words, near],
        split=split,
        config=FusionConfig(how="reciprocal"),
        lexical=[0],
    )
    how = FusionConfig(how="interpolate", weight=0.3)
    mixed = fused_with_bm25("mixture", collection, retrieval.ranking, config, how)(split)
    prior = Reranking(PRIOR, collection, retrieval, ranker, config.rerank, config.evaluate, PriorConfig())
    neighbours = {
        name: step(
            name,
            rerank_by_neighbours,
            data=data,
            vectors=retrieval.vectors,
            queries=retrieval.queries(split),
            ranking=ranking,
            config=NeighboursRerankConfig(k=5, context=10, weight=weight),
        )
        for name, ranking, weight in [
            (NEIGHBOURS, near, "linear"),
            (WEIGHED, near, "exp"),
            ("BM25 by neighbours", words, "linear"),
        ]
    }
    twice = step("two of one", fuse, data=data, rankings=[near, near], split=split, config=FusionConfig())
    over = {
        name: reranked(name, collection, one, ranker, config, config.rerank)
        for name, one in {
            FUSED: fusion,
            MIXED: mixed,
            "ranker over retriever": near,
            "ranker over neighbours": neighbours[NEIGHBOURS],
        }.items()
    }
    again = reranked("ranker again", collection, over[FUSED], ranker, config, config.rerank)
    rankings = {
        "BM25": words,
        "fusion": fusion,
        "mixture": mixed,
        "two of one": twice,
        "ranker again": again,
        PRIOR: prior.ranking(split),
        **neighbours,
        **over,
    }
    results.add("retriever", near, seed=1, retrieval=retrieval)
    for name, ranking in rankings.items():
        of = retrieval if name == "ranker over retriever" else None
        results.add(name, ranking, seed=1, retrieval=of, ranker=ranker.step if name in over else None)
    return Outcome(
        results=results.gather([]),
        data=data,
        systems=results.rows,
        retrieval=retrieval,
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
