"""Measure one encoder of sentences on labelled sets: a model as it is, or one that another experiment trains."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sparring.components.config import distinct
from sparring.components.sources.base import AnySource
from sparring.workflows.experiments import loading
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.stages.sentences import SentenceEncoder, SentencesConfig, measured
from sparring.workflows.stages.starting import RetrieverToMeasure
from sparring.workflows.steps.whiten import whiten
from sparring.workflows.store.dag import graph, in_phase, relabelled, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.rows import Outcome, note_on

SYSTEM = "retriever"
"""Name of the encoder in tables. Other recipes use it too, so that `compare` finds it."""


class Config(RetrieverToMeasure, SentencesConfig):
    """An encoder, and sets by name."""

    recipe: Literal["sentences"]
    whiten: AnySource | None = Field(None, exclude_if=lambda whiten: whiten is None)
    """Texts that a whitening is fitted to. The encoder's vectors of these texts, and roughly those of other texts, then
    have mean zero and the identity as covariance (Su et al., 2021; Chuang et al., 2022, Table 2.1). It needs
    `similarity: dot`; cosines are measured anyway. Null does not whiten."""
    seeds: Annotated[list[int], AfterValidator(distinct), Field(min_length=1)] | None = None
    """Seeds of the experiment. The last retriever of each is measured. Null takes one, as in the experiment's file."""

    @model_validator(mode="after")
    def _seeds_are_an_experiments(self) -> Self:
        if self.seeds is not None and self.experiment is None:
            raise ValueError("seeds: without `experiment` nothing is trained, so there are no seeds; accepted: null")
        if self.seeds is not None and any(assignment.partition("=")[0].strip() == "seeds" for assignment in self.sets):
            raise ValueError("sets: seeds: the key `seeds` sets them too; accepted: one of the two")
        return self


def build(config: Config) -> Outcome:
    """Measure each set, and average each measure over the sets that have it."""
    if config.experiment is None:
        assert config.retriever is not None
        begun = config.retriever
        on = _whitened(config, SYSTEM, lambda collection: collection.initial_model(SYSTEM, begun))
        return measured(config, [SentenceEncoder(SYSTEM, 1, SYSTEM, on)], [], note_on(begun.model))
    trained, encoders = {}, []
    for seed in config.seeds or [1]:
        sets = [] if config.seeds is None else [f"seeds=[{seed}]"]
        needs = [] if config.seeds is None else ["seeds"]
        outcome = loading.read_outcome(Path(config.experiment), [*config.sets, *sets], needs=needs)
        trained[seed] = outcome.last_retriever(f"experiment: {config.experiment}")
    labels = {seed: {node.fingerprint: node.label for node in graph([model])} for seed, model in trained.items()}
    shared = set.intersection(*map(set, labels.values()))
    for seed, model in trained.items():
        suffix = f" (seed {seed})" if len(trained) > 1 else ""
        seed_labels = {name: f"{label}{suffix}" for name, label in labels[seed].items() if name not in shared}
        encoder = partial(Collection.foreign_retriever, trained=relabelled(model, seed_labels))
        on = _whitened(config, f"{SYSTEM}{suffix}", encoder)
        encoders.append(SentenceEncoder(SYSTEM, seed, f"{SYSTEM}{suffix}", on))
    note = f"The encoder is the last retriever of {config.experiment}. {outcome.note}"
    return measured(config, encoders, [], note)


@in_phase(EVALUATION)
def _whitened(config: Config, label: str, on: Callable[[Collection], Model]) -> Callable[[Collection], Model]:
    """Apply the whitening of the config to an encoder, if any."""
    if config.whiten is None:
        return on
    texts = CollectionConfig(data=config.whiten, tokens=config.tokens, encode=config.encode)
    collection = Collection(texts)
    model = on(collection)
    vectors = refresh(f"{label} before whitening", collection, model, texts).vectors
    whitening = step(f"{label} whitened", whiten, start=model.step, vectors=vectors)
    return lambda target: on(target).after(whitening)
