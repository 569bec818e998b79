"""DiffCSE: an encoder of sentences that is aware of replaced words (Chuang et al., 2022).

It learns from texts without labels, and is measured on sets with labels beside the model that it begins from. SimCSE is
the same without differences (`pretrain.objective: simcse`).
"""

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sparring.components.config import distinct
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.objectives.parts.config import not_one_encoder
from sparring.components.sources.base import AnySource
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, seeded
from sparring.workflows.stages.pretraining import Pretraining, pretrained
from sparring.workflows.stages.sentences import SentenceEncoder, SentencesConfig, measured
from sparring.workflows.store.dag import Step, in_phase
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import PRETRAINING
from sparring.workflows.systems.rows import Outcome, note_on


class Config(SentencesConfig):
    """An encoder, the texts that it learns from, and the sets that it is measured on."""

    recipe: Literal["diffcse"]
    data: AnySource
    """Texts to learn from: a collection's documents."""
    seeds: Annotated[list[int], AfterValidator(distinct)] = Field([1], min_length=1)
    """Seeds. Each is one whole training. Tables show the mean over them, and comparisons are between means."""
    retriever: DualEncoderConfig
    """The encoder. Its document side is trained."""
    pretrain: Pretraining
    """Training: SimCSE or DiffCSE, perhaps after other trainings such as masked language modelling. Each is
    measured."""

    @model_validator(mode="after")
    def _learns_sentences(self) -> Self:
        if (last := self.pretrain[-1].objective) not in ("simcse", "diffcse"):
            raise ValueError(f"pretrain: objective: {last} is the last; accepted: simcse, diffcse")
        if wrong := not_one_encoder(self.retriever):
            raise ValueError(f"retriever.{wrong}")
        if self.retriever.truncate is not None:
            raise ValueError(f"retriever.truncate: {self.retriever.truncate}: whole vectors are learnt; accepted: null")
        return self


def build(config: Config) -> Outcome:
    """Train one encoder per seed, and measure it next to the start model."""
    texts = CollectionConfig(data=config.data, seeds=config.seeds, tokens=config.tokens)
    collection = Collection(texts)
    begun = collection.initial_model("start retriever", config.retriever)
    names = [*(f"pre-training {i + 1}" for i in range(len(config.pretrain) - 1)), "retriever"]
    encoders = []
    for seed in config.seeds:
        encoders.append(SentenceEncoder("start model", seed, "start", partial(_with, config.retriever, begun.step)))
        with in_phase(PRETRAINING):
            models = pretrained(collection, begun, config.pretrain, texts, seed)
        for name, model in zip(names, models, strict=True):
            label = seeded(name, seed, texts)
            encoders.append(SentenceEncoder(name, seed, label, partial(_with, config.retriever, model.step)))
    comparisons = [("retriever", name) for name in ["start model", *names[:-1]]]
    return measured(config, encoders, comparisons, note_on(config.retriever.model))


def _with(reads: DualEncoderConfig, trained: Step, collection: Collection) -> Model:
    """Return a trained encoder on another collection."""
    return collection.initial_model("start retriever", reads).after(trained)
