"""One retriever, BM25 and their fusion on collections that it was not trained on (BEIR; paper 000, Table 2)."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.embedding_space import AnalysisConfig
from components.fusion import FusionConfig
from components.model_configs import DualEncoderConfig
from components.sources.base import AnySource
from workflows import recipes
from workflows.board import Board, Outcome, averaged, note_on
from workflows.dag import Step, graph, relabelled, step
from workflows.parts import Base, Collection, EvaluateConfig, LexicalConfig, begin, refresh
from workflows.steps.encode import EncodeConfig
from workflows.steps.exclude import exclude
from workflows.steps.fuse import fuse
from workflows.steps.search import SearchConfig
from workflows.steps.tokenize import TokenizeConfig


class Evaluated(Part):
    """A collection, and what is measured on it."""

    data: AnySource
    split: str = "test"
    """The split whose queries are asked."""
    same_id: Literal["keep", "drop"] = "keep"
    """Whether a document with its query's id may be found: `drop` where queries stand among the documents and the
    benchmark leaves them out (BEIR: ArguAna, Quora)."""


class Config(Part):
    """A retriever, and collections by name."""

    recipe: Literal["zeroshot"]
    collections: dict[str, Evaluated] = Field(min_length=1)
    """What each is called in the table."""
    retriever: DualEncoderConfig | None = None
    """A model as it is: from a hub, a package, or the folder of an export."""
    experiment: str | None = None
    """An experiment's file instead, relative to where you run: the last retriever that it trains."""
    sets: list[str] = []
    """`key.path=value` for that experiment, as `--set` has it."""
    k: int = Field(100, ge=1)
    """Documents retrieved for a query."""
    tokens: TokenizeConfig = TokenizeConfig()
    bm25: LexicalConfig = LexicalConfig()
    encode: EncodeConfig = EncodeConfig()
    search: SearchConfig = SearchConfig()
    fusion: FusionConfig | None = FusionConfig(how="reciprocal")
    """How the retriever's ranking and BM25's become one; null for no fusion."""
    measures: list[str] = ["nDCG@10", "R@100"]
    """In `ir_measures`' names."""
    analyse: AnalysisConfig | None = None
    """What the retriever's space looks like on each collection: numbers and pictures in the report; null for none."""

    @model_validator(mode="after")
    def _one_retriever(self) -> Self:
        if (self.retriever is None) == (self.experiment is None):
            raise ValueError("say either `retriever` or `experiment`: one retriever is evaluated")
        return self


def build(config: Config) -> Outcome:
    """Each collection by itself, and the averages over them."""
    retriever, note = _retriever(config)
    entries: list[dict[str, Any]] = []
    labels: dict[str, str] = {}
    last = None
    for name, asked in config.collections.items():
        base = _base(config, asked)
        collection = Collection(base, retriever)
        board = Board(collection, base, name=name)
        lexical = collection.bm25([asked.split])
        found = refresh("retriever", collection, retriever, base, splits=[asked.split])
        rankings = {"BM25": lexical, "retriever": found.ranking}
        if asked.same_id == "drop":
            rankings = {
                system: step(f"{system} without the queries", exclude, ranking=ranking, k=config.k)
                for system, ranking in rankings.items()
            }
        if config.fusion is not None:
            rankings["fusion"] = step(
                "fusion", fuse, data=collection.data, rankings=list(rankings.values()), split=asked.split,
                config=config.fusion,
            )  # fmt: skip
        for system, ranking in rankings.items():
            board.add(system, ranking, seed=1)
        entries += board.entries
        own = graph(entry[key] for entry in board.entries for key in ("metrics", "analysis") if key in entry)
        trained = {node.fingerprint for node in graph([retriever])}
        labels |= {node.fingerprint: f"{name}: {node.label}" for node in own if node.fingerprint not in trained}
        last = last or Outcome(
            results=lexical, data=collection.data, found=found, ranker=None, rankings=rankings, split=asked.split,
            note=note,
        )  # fmt: skip
    assert last is not None
    comparisons = [("retriever", "BM25")]
    if config.fusion is not None:
        comparisons += [("fusion", "BM25"), ("fusion", "retriever")]
    return replace(last, results=relabelled(averaged(entries, comparisons), labels))


def _retriever(config: Config) -> tuple[Step, str]:
    """The retriever's step, and what is to be known of what it was trained on."""
    if config.experiment is not None:
        outcome = recipes.read(Path(config.experiment), config.sets, Path("runs")).outcome
        return outcome.found.retriever, f"The retriever is the last one of {config.experiment}. {outcome.note}"
    assert config.retriever is not None
    return begin("retriever", config.retriever), note_on(config.retriever.model)


def _base(config: Config, asked: Evaluated) -> Base:
    """What one collection is read, searched and measured with; one document more where one may be dropped."""
    return Base(
        recipe=config.recipe, data=asked.data, k=config.k + (asked.same_id == "drop"), tokens=config.tokens,
        bm25=config.bm25, encode=config.encode, search=config.search,
        evaluate=EvaluateConfig(split=asked.split, measures=config.measures), analyse=config.analyse,
    )  # fmt: skip
