"""One encoder of sentences on sets with labels: similarity as people rate it, and transfer to classification (SentEval,
Conneau and Kiela, 2018; DiffCSE, Chuang et al., 2022, Tables 2.1, 2.2, 2.10 and 2.11, Figure 2-2).

Vectors are those of the encoder's document side. Intervals of correlations are by the infinitesimal jackknife over
pairs (`components.evaluation.similarity`), those of accuracies and of recall over examples.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from components.config import Config as Part
from components.config import UserError
from components.evaluation.averages import AVERAGE
from components.evaluation.measures import canonical, cutoff, needs_answers
from components.evaluation.similarity import SimilarityConfig
from components.evaluation.transfer import TransferConfig
from components.models.configs import DualEncoderConfig
from components.sources.base import AnySource
from components.sources.labelled import ALL, LabelledSource
from workflows.stages import experiments
from workflows.stages.collection import Collection
from workflows.stages.config import CollectionConfig, EvaluateConfig
from workflows.stages.results import Outcome, Results, System, gathered, note_on
from workflows.stages.retrieval import Retrieval, refresh
from workflows.steps.encode import EncodeConfig
from workflows.steps.exclude import exclude, exclude_copies
from workflows.steps.search import SearchConfig
from workflows.steps.sentences import similarity, transfer
from workflows.steps.tokenize import TokenizeConfig
from workflows.store.dag import graph, relabelled, step

SYSTEM = "retriever"
"""What tables call the encoder: as other recipes do, so that `compare` finds it."""

COPIES = 10
"""Documents that are retrieved beyond those that are measured, as copies of the query are left out."""


class LabelledSet(Part):
    """A set of labelled sentences."""

    data: AnySource
    averaged: bool = True
    """Whether the set counts in the average. A development set does not."""

    @field_validator("data")
    @classmethod
    def _has_labels(cls, source: AnySource) -> AnySource:
        if not isinstance(source, LabelledSource):
            raise ValueError(f"format {source.format!r} has no labelled sentences; accepted: senteval, tsv")
        return source


class RatedPairs(LabelledSet):
    """Pairs of sentences that people have rated."""

    split: str = "test"
    """The split whose pairs are measured. Every split that `data` reads is encoded: let it read no other."""
    retrieve: list[str] = []
    """Measures, such as R@1, of finding the other sentence of a positive pair among all sentences of the set without
    the query itself (Table 2.10). Each of the two sentences is a query once; the published percentages are multiples of
    1/194 for 97 pairs, so the paper has done the same. Empty for none."""
    copies: Literal["drop", "keep"] = "drop"
    """Whether copies of the query in other pairs are left out too, up to 10. The paper does not say. Of STS-B's 194
    queries 39 have a copy, which is always found first: with `keep` no encoder has R@1 above .80, and SimCSE's .78
    would be all but perfect. Copies of the other sentence stay, and count as wrong; of equal scores the lower id is
    first."""

    @field_validator("retrieve")
    @classmethod
    def _has_cutoffs(cls, measures: list[str]) -> list[str]:
        try:
            names = [canonical(name) for name in measures]
        except UserError as error:
            raise ValueError(str(error)) from None
        for name in names:
            if cutoff(name) is None or needs_answers(name):
                raise ValueError(f"measure {name!r}: accepted: a measure by judgements with a cutoff, such as R@1")
        return names


class LabelledSentences(LabelledSet):
    """Sentences, or pairs, with a class."""

    split: str | None = None
    """The split that is measured, after training on `train`. Null for cross-validation over all examples."""


class Config(Part):
    """An encoder, and sets by name."""

    recipe: Literal["sentences"]
    similarity: dict[str, RatedPairs] = {}
    """Sets of rated pairs, by the name that tables show."""
    transfer: dict[str, LabelledSentences] = {}
    """Sets of classified sentences, by the name that tables show."""
    retriever: DualEncoderConfig | None = None
    """A model as it is: from a hub, a package, or the folder of an export, which needs no more than `model`."""
    experiment: str | None = None
    """An experiment's file instead, relative to where you run: the last retriever that it trains."""
    sets: list[str] = []
    """`key.path=value` for that experiment, as `--set` has it."""
    tokens: TokenizeConfig = TokenizeConfig()
    encode: EncodeConfig = EncodeConfig(precision="fp32", vectors="float32")
    search: SearchConfig = SearchConfig()
    correlation: SimilarityConfig = SimilarityConfig()
    classifier: TransferConfig = TransferConfig()

    @model_validator(mode="after")
    def _one_retriever(self) -> Self:
        if (self.retriever is None) == (self.experiment is None):
            raise ValueError("say either `retriever` or `experiment`: one encoder is evaluated")
        return self

    @model_validator(mode="after")
    def _names_apart(self) -> Self:
        names = [*self.similarity, *self.transfer, *(positives(name) for name in self.similarity)]
        if not self.similarity and not self.transfer:
            raise ValueError("no sets; accepted: one or more in `similarity` or `transfer`")
        for name in names:
            if names.count(name) > 1 or name == AVERAGE:
                raise ValueError(f"{name!r} stands for something else too; accepted: another name for the set")
        return self

    def all_sets(self) -> dict[str, RatedPairs | LabelledSentences]:
        """By the name that tables show."""
        return {**self.similarity, **self.transfer}

    def on(self, asked: LabelledSet, split: str, measures: list[str]) -> CollectionConfig:
        """One set: how it is read, encoded, searched and measured."""
        k = max([cutoff(name) or 0 for name in measures], default=1) + 1 + COPIES  # what is found and left out
        evaluate = EvaluateConfig(split=split, select=None, measures=measures)
        return CollectionConfig(
            data=asked.data, k=k, tokens=self.tokens, encode=self.encode, search=self.search, evaluate=evaluate
        )


def positives(name: str) -> str:
    """What tables call the positive pairs of a set."""
    return f"{name}, positive pairs"


def build(config: Config) -> Outcome:
    """Each set by itself, and the average of each measure over the sets that have it."""
    other = None if config.experiment is None else experiments.read_outcome(Path(config.experiment), config.sets)
    asked = config.all_sets()
    outcomes = {name: _measured(config, other, name, one) for name, one in asked.items()}
    systems = [system for outcome in outcomes.values() for system in outcome.systems]
    labels: dict[str, str] = {}
    for name, outcome in outcomes.items():
        shared = {node.fingerprint for node in graph([outcome.retrieval.retriever])}
        own = graph(node for system in outcome.systems for node in system.steps)
        labels |= {node.fingerprint: f"{name}: {node.label}" for node in own if node.fingerprint not in shared}
    parts: dict[str, str | None] = {name: None for name, one in asked.items() if not one.averaged}
    parts |= {positives(name): None for name, one in config.similarity.items() if one.retrieve}
    # A set with positive pairs is one that can be searched and exported as other runs can.
    first = next((one for one in outcomes.values() if one.ranked), next(iter(outcomes.values())))
    return replace(first, results=relabelled(gathered(systems, [], parts=parts), labels), systems=systems, parts=parts)


def _measured(config: Config, other: Outcome | None, name: str, asked: RatedPairs | LabelledSentences) -> Outcome:
    own = config.on(asked, asked.split or ALL, asked.retrieve if isinstance(asked, RatedPairs) else [])
    collection = Collection(own)
    results = Results(collection, own, name=name)
    if other is not None:
        retriever, note = collection.foreign_model(other.retrieval.retriever), other.note
        note = f"The encoder is the last retriever of {config.experiment}. {note}"
    else:
        assert config.retriever is not None
        retriever, note = collection.initial_model("retriever", config.retriever), note_on(config.retriever.model)
    retrieval = refresh("sentence", collection, retriever, own)
    kind, measure = ("similarity", similarity) if isinstance(asked, RatedPairs) else ("transfer", transfer)
    measured = step(
        kind, measure, data=collection.data, vectors=retrieval.vectors, split=asked.split,
        config=config.correlation if isinstance(asked, RatedPairs) else config.classifier,
    )  # fmt: skip
    results.add_measures(SYSTEM, measured, seed=1)
    systems = list(results.systems)
    if isinstance(asked, RatedPairs) and asked.retrieve:
        systems += _retrieved(asked, Results(collection, own, name=positives(name)), retrieval)
    return Outcome(
        results=systems[-1].metrics, data=collection.data, systems=systems, retrieval=retrieval, ranker=None,
        split=own.evaluate.split, note=note,
    )  # fmt: skip


def _retrieved(asked: RatedPairs, results: Results, retrieval: Retrieval) -> list[System]:
    """The retrieval of the positive pairs' other sentences."""
    ranking, k = retrieval.ranking(asked.split), results.config.k - 1 - COPIES
    if asked.copies == "keep":
        kept = step("ranking without the queries", exclude, ranking=ranking, k=k)
    else:
        kept = step(
            "ranking without the queries", exclude_copies, data=retrieval.data, tokens=retrieval.model.tokens,
            ranking=ranking, k=k,
        )  # fmt: skip
    results.add(SYSTEM, kept, seed=1, retrieval=retrieval)
    return results.systems
