"""Pre-training of an encoder on a collection's documents (Wang et al., 2023, section 3.1, and its rivals)."""

from typing import Any, Literal, Self

from pydantic import model_validator

from components.config import Config as Part
from components.models.configs import MaskedLanguageModelConfig
from components.training.config import TrainConfig, check_training
from components.training.pretraining import BottleneckConfig, ClozeConfig, MaskedLanguageModelingConfig, SpanConfig
from workflows.stages.collection import Collection, Model
from workflows.stages.config import CollectionConfig, seeded
from workflows.steps.start import start
from workflows.steps.train import train
from workflows.store.dag import Step, step


class GeneratorPhase(Part):
    """The generator that replaces tokens, ELECTRA's in the paper."""

    model: MaskedLanguageModelConfig
    masking: MaskedLanguageModelingConfig = MaskedLanguageModelingConfig()
    train: TrainConfig | None = None
    """Masked language modelling on the documents before it is asked, for a model without such a head. Null to take it
    as it is."""


class PretrainingPhase(Part):
    """What is learnt from documents alone."""

    objective: Literal["simlm", "cocondenser", "ict"] = "simlm"
    """`simlm`, with all that `bottleneck` makes of it; `cocondenser`, the same over two spans of each document, which
    find each other in the view `batch`; `ict`, the inverse cloze task."""
    bottleneck: BottleneckConfig = BottleneckConfig()
    spans: SpanConfig = SpanConfig()
    cloze: ClozeConfig = ClozeConfig()
    generator: GeneratorPhase | None = None
    """Null where tokens are masked or whole sentences are taken out."""
    head: MaskedLanguageModelConfig | None = None
    """The masked language model whose head the encoder begins with. Null for a new head."""
    train: TrainConfig

    @model_validator(mode="after")
    def _has_what_it_asks(self) -> Self:
        if (self.generator is not None) != (self.objective != "ict" and self.bottleneck.task != "masked"):
            raise ValueError("generator: a task that replaces tokens wants one, and no other does")
        return self


def pretrained(
    collection: Collection, begun: Model, asked: PretrainingPhase, config: CollectionConfig, seed: int
) -> Model:
    """The retriever after pre-training on the collection's documents."""
    label = seeded("pre-training", seed, config)
    own: dict[str, Any] = {"cloze": asked.cloze} if asked.objective == "ict" else {"bottleneck": asked.bottleneck}
    if asked.objective == "cocondenser":
        own["spans"] = asked.spans
    if asked.generator is not None:
        own["generator"] = _generator(collection, begun, asked.generator, config, seed)
    if asked.head is not None and asked.objective != "ict":
        own["language_model"] = step("head", start, config=asked.head)
    return begun.after(
        _learnt(label, collection, begun, asked.objective, begun.step, config=asked.train, seed=seed, **own)
    )


def _generator(
    collection: Collection, begun: Model, asked: GeneratorPhase, config: CollectionConfig, seed: int
) -> Step:
    """The generator, perhaps after masked language modelling."""
    model = step("start generator", start, config=asked.model)
    if asked.train is None:
        return model
    label = seeded("generator", seed, config)
    return _learnt(label, collection, begun, "mlm", model, config=asked.train, seed=seed, masking=asked.masking)


def _learnt(
    label: str, collection: Collection, reads: Model, objective: str, begins: Step, *, config: TrainConfig, seed: int,
    **own: Any,
) -> Step:  # fmt: skip
    """A training on the collection's documents, over the token store of the model that `reads` them."""
    check_training(objective, config, label)
    return step(
        label, train, objective=objective, rows=collection.data, data=collection.data, tokens=reads.tokens,
        dev=collection.data if config.validate_on_dev is not None else None, start=begins, seed=[seed, objective],
        config=config, part="pre-training", **own,
    )  # fmt: skip
