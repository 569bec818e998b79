"""SimLM: an encoder that is pre-trained on the collection's own documents, and then a DPR on its queries (Wang et al.,
2023). The paper's rivals of pre-training are options of the same."""

from typing import Any, Literal, Self

from pydantic import model_validator

from components.config import Config as Part
from components.models.configs import DualEncoderConfig, MaskedLanguageModelConfig
from components.retrieval.screening import ScreenConfig
from components.training.config import TrainConfig, check_training
from components.training.pretraining import BottleneckConfig, ClozeConfig, MaskedLanguageModelingConfig, SpanConfig
from workflows.stages.collection import Collection, Model
from workflows.stages.config import RetrievalConfig, TrainingPhase, seeded
from workflows.stages.results import Outcome, Results, note_on
from workflows.stages.retrieval import refresh
from workflows.stages.training import phase
from workflows.stages.untrained import add_untrained
from workflows.steps.mine import MineConfig
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


class Config(RetrievalConfig):
    """A collection, a retriever, and what it learns before and from its queries."""

    recipe: Literal["simlm"]
    retriever: DualEncoderConfig
    pretrain: PretrainingPhase
    negatives: MineConfig = MineConfig(negatives=1)
    """Hard negatives of a group, from BM25's ranking. `negatives: 0` for in-batch ones alone."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking. Null leaves out judged documents and copies of them alone."""
    train: TrainConfig | None = None
    """The training on labelled queries, once from the pre-trained encoder and once from the start model. Null to
    measure the pre-trained encoder alone."""


def build(config: Config) -> Outcome:
    """Pre-train one encoder a seed, fine-tune it and the start model alike, and measure all of them."""
    collection = Collection(config)
    begun = collection.initial_model("start retriever", config.retriever)
    results, split = Results(collection, config), config.evaluate.split
    untrained = refresh("start", collection, begun, config)
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever, seed=seed)
        encoder = pretrained(collection, begun, config, seed)
        last = refresh(seeded("pre-trained", seed, config), collection, encoder, config)
        results.add("pre-trained", last.ranking(split), retrieval=last, seed=seed)
        if config.train is not None:
            learns = TrainingPhase(screen=config.screen, mine=config.negatives, train=config.train)
            for name, model in {"retriever without pre-training": begun, "retriever": encoder}.items():
                retriever = phase(
                    seeded(name, seed, config), collection, model, seed=[seed, "retriever"], config=learns,
                    rankings=collection.bm25 if config.negatives.negatives > 0 else None,
                )  # fmt: skip
                last = refresh(seeded(name, seed, config), collection, retriever, config)
                results.add(name, last.ranking(split), retrieval=last, seed=seed)
    comparisons = [("pre-trained", "start model")]
    if config.train is not None:
        comparisons = [("retriever", "retriever without pre-training"), ("retriever", "BM25"), *comparisons]
    return Outcome(
        results=results.gather(comparisons), data=collection.data, systems=results.systems, retrieval=last,
        ranker=None, split=split, note=note_on(config.retriever.model),
    )  # fmt: skip


def pretrained(collection: Collection, begun: Model, config: Config, seed: int) -> Model:
    """The retriever after pre-training on the collection's documents."""
    asked, label = config.pretrain, seeded("pre-training", seed, config)
    own: dict[str, Any] = {"cloze": asked.cloze} if asked.objective == "ict" else {"bottleneck": asked.bottleneck}
    if asked.objective == "cocondenser":
        own["spans"] = asked.spans
    if asked.generator is not None:
        own["generator"] = generator(collection, begun, asked.generator, config, seed)
    if asked.head is not None and asked.objective != "ict":
        own["language_model"] = step("head", start, config=asked.head)
    return begun.after(
        learnt(label, collection, begun, asked.objective, begun.step, config=asked.train, seed=seed, **own)
    )


def generator(collection: Collection, begun: Model, asked: GeneratorPhase, config: Config, seed: int) -> Step:
    """The generator, perhaps after masked language modelling."""
    model = step("start generator", start, config=asked.model)
    if asked.train is None:
        return model
    label = seeded("generator", seed, config)
    return learnt(label, collection, begun, "mlm", model, config=asked.train, seed=seed, masking=asked.masking)


def learnt(
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
