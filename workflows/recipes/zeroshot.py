"""Measure one retriever, BM25 and their fusion on collections that the retriever was not trained on (BEIR; Moiseev et
al., 2023, Table 2)."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config as Part
from sparring.components.evaluation.averages import AVERAGE
from sparring.components.evaluation.embedding_space import EmbeddingSpaceConfig
from sparring.components.evaluation.measures import Measure
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.sources.base import AnySource
from sparring.workflows.experiments import loading
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, EvaluateConfig, LexicalConfig
from sparring.workflows.stages.contender import Contender
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.stages.sizes import Sizes, SizesKey
from sparring.workflows.stages.starting import RetrieverToMeasure
from sparring.workflows.stages.untrained import add_contenders
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.steps.tokenize import TokenizeConfig
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome, Row, gathered, note_on
from sparring.workflows.systems.system import System


class Evaluated(Part):
    """A collection and its measured split."""

    data: AnySource
    split: str = "test"
    """Split whose queries are measured."""
    other_qrels: dict[str, AnySource] = Field({}, exclude_if=lambda qrels: not qrels)
    """Other judgements of the same queries, by the name that tables show, such as TripClick's other labels. They do not
    count in the average."""
    part_of: str | None = None
    """Name of a whole that this collection is a part of. The mean over the parts counts once in the average, as that of
    CQADupStack's twelve forums does in BEIR. Null for a whole collection."""


class Config(RetrieverToMeasure, SizesKey):
    """A retriever, and collections by name."""

    recipe: Literal["zeroshot"]
    collections: dict[str, Evaluated] = Field(min_length=1)
    """Collections, by the name that tables show."""
    k: int = Field(100, ge=1)
    """Number of documents retrieved for a query."""
    tokens: TokenizeConfig = TokenizeConfig()
    bm25: LexicalConfig = LexicalConfig()
    encode: EncodeConfig = EncodeConfig()
    search: SearchConfig = SearchConfig()
    fusion: FusionConfig | None = FusionConfig(how="reciprocal")
    """Fusion of the retriever's ranking with BM25's. Null does not fuse."""
    contenders: dict[str, Contender] = Field({}, exclude_if=lambda contenders: not contenders)
    """Systems that you run today, by the name for tables. They are measured on every collection, and the retriever is
    compared with each."""
    measures: list[Measure] = ["nDCG@10", "R@100"]
    """Measures, in the names of `ir_measures`."""
    analyse: EmbeddingSpaceConfig | None = None
    """Analysis of the retriever's embedding space on each collection: numbers and pictures in the report. Null does not
    analyse."""

    @model_validator(mode="after")
    def _one_meaning_of_a_name(self) -> Self:
        for name in [AVERAGE, *self.parts().values()]:
            if name in self.collections:
                raise ValueError(f"collections: {name!r} is the name of a mean; accepted: another name")
        if AVERAGE in self.parts().values():
            raise ValueError(f"part_of: {AVERAGE!r} is the mean over all collections; accepted: another name")
        return self

    def parts(self) -> dict[str, str | None]:
        """Map each collection to the whole that it is a part of. The value is None for further judgements of another
        collection."""
        wholes = {name: dataset.part_of for name, dataset in self.collections.items() if dataset.part_of is not None}
        return {**wholes, **{name: None for dataset in self.collections.values() for name in dataset.other_qrels}}

    def on(self, dataset: Evaluated) -> CollectionConfig:
        """Return the config that says how one collection is read, searched and measured."""
        return CollectionConfig(
            data=dataset.data,
            k=self.k,
            tokens=self.tokens,
            bm25=self.bm25,
            encode=self.encode,
            search=self.search,
            analyse=self.analyse,
            contenders=self.contenders,
            evaluate=EvaluateConfig(split=dataset.split, measures=self.measures, other_qrels=dataset.other_qrels),
        )


@in_phase(EVALUATION)
def build(config: Config) -> Outcome:
    """Measure each collection, and average over them."""
    outcome = None if config.experiment is None else loading.read_outcome(Path(config.experiment), config.sets)
    rows: list[Row] = []
    labels: dict[str, str] = {}
    first = None
    pictures: list[Step] = []
    for name, dataset in config.collections.items():
        settings = config.on(dataset)
        collection = Collection(settings)
        results = Results(collection, settings, name=name)
        if outcome is not None:
            retriever = collection.foreign_retriever(outcome.last_retriever(f"experiment: {config.experiment}"))
        else:
            assert config.retriever is not None
            retriever = collection.initial_model("retriever", config.retriever)
        retrieval = refresh("retriever", collection, retriever, settings)
        systems: dict[str, System] = {"BM25": collection.lexical, "retriever": retrieval}
        if config.fusion is not None:
            parts = [collection.lexical, retrieval]
            fusion = config.fusion.reaching(config.k)
            systems["fusion"] = Fused("fusion", collection.data, parts, fusion, with_split=False)
        for system, value in systems.items():
            results.add(system, value, seed=1)
        add_contenders(results, seed=1)
        if config.sizes:
            sizes = Sizes(results)
            sizes.add("retriever", retrieval, config.sizes, seed=1)
            pictures += sizes.table(f"sizes ({name})")
        rows += results.rows
        measured = graph(node for row in results.rows for node in row.steps)
        shared = {node.fingerprint for node in [*graph([retriever.step]), *_without_data(measured)]}
        labels |= {node.fingerprint: f"{name}: {node.label}" for node in measured if node.fingerprint not in shared}
        first = first or Outcome(
            results=collection.lexical.ranking(dataset.split),
            data=collection.data,
            rows=(),
            retrieval=retrieval,
            split=dataset.split,
            note=_note(config, outcome),
        )
    assert first is not None
    comparisons = [("retriever", "BM25")]
    if config.fusion is not None:
        comparisons += [("fusion", "BM25"), ("fusion", "retriever")]
    comparisons += [("retriever", name) for name in config.contenders]
    results_step = gathered(rows, comparisons, parts=config.parts())
    return replace(
        first, results=relabelled(results_step, labels), rows=rows, parts=config.parts(), pictures=tuple(pictures)
    )


def _without_data(nodes: list[Step]) -> list[Step]:
    """Return the steps, of a graph with inputs first, that read no collection, such as models as they come."""
    reading = set[str]()
    for node in nodes:
        if node.description.makes == "collection" or any(before.fingerprint in reading for before in node.upstream):
            reading.add(node.fingerprint)
    return [node for node in nodes if node.fingerprint not in reading]


def _note(config: Config, outcome: Outcome | None) -> str:
    """Describe the retriever's training, as far as it is known."""
    if outcome is not None:
        return f"The retriever is the last one of {config.experiment}. {outcome.note}"
    assert config.retriever is not None
    return note_on(config.retriever.model)
