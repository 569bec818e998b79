"""Encoders of sentences, measured on sets with labels: similarity as people rate it, and transfer to classification
(SentEval, Conneau and Kiela, 2018; DiffCSE, Chuang et al., 2022, Tables 2.1, 2.2, 2.10 and 2.11, Figure 2-2).

Vectors are those of the encoder's document side. Intervals of correlations are by the infinitesimal jackknife over
pairs (`components.evaluation.similarity`), those of accuracies and of recall over examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from pydantic import field_validator, model_validator

from sparring.components.config import Config
from sparring.components.evaluation.averages import AVERAGE
from sparring.components.evaluation.measures import Measure, cutoff, needs_answers
from sparring.components.evaluation.similarity import SimilarityConfig
from sparring.components.evaluation.transfer import TransferConfig
from sparring.components.sources.labelled import ALL, AnyLabelledSource
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, EvaluateConfig
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.steps.sentences import similarity, transfer
from sparring.workflows.steps.tokenize import TokenizeConfig
from sparring.workflows.store.dag import graph, in_phase, relabelled, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome, gathered


class LabelledSet(Config):
    """A set of labelled sentences."""

    data: AnyLabelledSource
    averaged: bool = True
    """True if the set counts in the average. A development set does not."""


class RatedPairs(LabelledSet):
    """Settings of pairs of sentences that people have rated."""

    split: str = "test"
    """Split whose pairs are measured. All splits that `data` reads are encoded, so let it read no other."""
    retrieve: list[Measure] = []
    """Measures, such as R@1, of finding the second sentence of a positive pair among all sentences of the set (Table
    2.10). The query itself and its copies are left out (`data.own_document`). Each of the two sentences is a query
    once: the published percentages are multiples of 1/194 for 97 pairs, so the paper has done the same. Copies of the
    second sentence count as wrong. If empty, none is measured."""

    @field_validator("retrieve")
    @classmethod
    def _has_cutoffs(cls, measures: list[str]) -> list[str]:
        for name in measures:
            if cutoff(name) is None or needs_answers(name):
                raise ValueError(f"measure {name!r}: accepted: a measure by judgements with a cutoff, such as R@1")
        return measures


class LabelledSentences(LabelledSet):
    """Settings of sentences, or pairs of sentences, with a class."""

    split: str | None = None
    """Split that is measured, after training on `train`. If null, cross-validate over all examples."""


class SentencesConfig(Config):
    """Sets by name, and the settings of measuring encoders on them."""

    similarity: dict[str, RatedPairs] = {}
    """Sets of rated pairs, by the name for tables."""
    transfer: dict[str, LabelledSentences] = {}
    """Sets of classified sentences, by the name for tables."""
    tokens: TokenizeConfig = TokenizeConfig()
    encode: EncodeConfig = EncodeConfig(precision="fp32", vectors="float32")
    search: SearchConfig = SearchConfig()
    correlation: SimilarityConfig = SimilarityConfig()
    classifier: TransferConfig = TransferConfig()

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
        """Return all sets by their names in tables."""
        return {**self.similarity, **self.transfer}

    def on(self, labelled: RatedPairs | LabelledSentences, seeds: list[int]) -> CollectionConfig:
        """Return the config for reading, encoding, searching and measuring one set."""
        measures = labelled.retrieve if isinstance(labelled, RatedPairs) else []
        k = max([cutoff(name) or 0 for name in measures], default=1)
        evaluate = EvaluateConfig(split=labelled.split or ALL, select=None, measures=measures)
        return CollectionConfig(
            data=labelled.data,
            seeds=seeds,
            k=k,
            tokens=self.tokens,
            encode=self.encode,
            search=self.search,
            evaluate=evaluate,
        )


def positives(name: str) -> str:
    """Name the positive pairs of a set for tables."""
    return f"{name}, positive pairs"


@dataclass(frozen=True)
class SentenceEncoder:
    """An encoder of sentences."""

    system: str
    """Its name in tables."""
    seed: int
    label: str
    """Beginning of its steps' labels."""
    on: Callable[[Collection], Model]
    """The encoder, with a token store of a collection."""


@in_phase(EVALUATION)
def measured(
    config: SentencesConfig, encoders: Sequence[SentenceEncoder], comparisons: list[tuple[str, str]], note: str
) -> Outcome:
    """Measure each encoder on each set, and average each measure over the sets that have it."""
    seeds = list(dict.fromkeys(encoder.seed for encoder in encoders))
    outcomes: list[Outcome] = []
    labels: dict[str, str] = {}
    for name, labelled in config.all_sets().items():
        settings = config.on(labelled, seeds)
        collection = Collection(settings)
        outcome = _on_set(collection, settings, config, name, labelled, encoders, note)
        outcomes.append(outcome)
        models = [encoder.on(collection) for encoder in encoders]
        # Pairs that a checkpoint is chosen by may be a set that is measured too.
        of_set = {collection.data.fingerprint, *(model.tokens.fingerprint for model in models)}
        shared = {node.fingerprint for node in graph(model.step for model in models)} - of_set
        nodes = graph(node for system in outcome.rows for node in system.steps)
        labels |= {node.fingerprint: f"{name}: {node.label}" for node in nodes if node.fingerprint not in shared}
    systems = [system for outcome in outcomes for system in outcome.rows]
    parts: dict[str, str | None] = {name: None for name, labelled in config.all_sets().items() if not labelled.averaged}
    parts |= {positives(name): None for name, labelled in config.similarity.items() if labelled.retrieve}
    # A set with positive pairs is one that can be searched and exported as other runs can.
    first = next((outcome for outcome in outcomes if outcome.ranked), outcomes[0])
    results = relabelled(gathered(systems, comparisons, parts=parts), labels)
    return replace(first, results=results, rows=systems, parts=parts)


def _on_set(
    collection: Collection,
    settings: CollectionConfig,
    config: SentencesConfig,
    name: str,
    labelled: RatedPairs | LabelledSentences,
    encoders: Sequence[SentenceEncoder],
    note: str,
) -> Outcome:
    results, pairs = Results(collection, settings, name=name), Results(collection, settings, name=positives(name))
    kind, measure = ("similarity", similarity) if isinstance(labelled, RatedPairs) else ("transfer", transfer)
    scoring = config.correlation if isinstance(labelled, RatedPairs) else config.classifier
    for encoder in encoders:
        retrieval = refresh(encoder.label, collection, encoder.on(collection), settings)
        measures = step(
            f"{encoder.label} {kind}",
            measure,
            data=collection.data,
            vectors=retrieval.vectors,
            split=labelled.split,
            config=scoring,
        )
        results.add_measures(encoder.system, measures, seed=encoder.seed, encoder=retrieval)
        if isinstance(labelled, RatedPairs) and labelled.retrieve:
            pairs.add(encoder.system, retrieval, seed=encoder.seed)
    systems = [*results.rows, *pairs.rows]
    return Outcome(
        results=systems[-1].metrics,
        data=collection.data,
        rows=systems,
        retrieval=retrieval,
        split=settings.evaluate.split,
        note=note,
    )
