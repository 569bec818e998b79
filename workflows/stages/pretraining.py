"""Pre-training of an encoder on a collection's documents: SimLM (Wang et al., 2023), DiffCSE (Chuang et al., 2022), and
the methods that they are compared with."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sparring.components.config import Config, listing
from sparring.components.models.capabilities import kind_of_tokenizer, lacks_dropout, positions, vocabulary
from sparring.components.models.configs import DualEncoderConfig, MaskedLanguageModelConfig
from sparring.components.objectives.parts.config import (
    AugmentationConfig,
    BottleneckConfig,
    ClozeConfig,
    DifferenceConfig,
    MaskConfig,
    MaskedLanguageModelingConfig,
    ProjectorConfig,
    SpanConfig,
    not_one_encoder,
)
from sparring.components.sources.labelled import AnyLabelledSource
from sparring.components.training.config import TrainConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, GeneratorPhase, check_generator, seeded
from sparring.workflows.stages.learning import learnt
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.start import start
from sparring.workflows.steps.tokenize import tokenize
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.model import Model

OPTIONS = {
    "simlm": ("bottleneck", "generator", "head"),
    "cocondenser": ("bottleneck", "spans", "generator", "head"),
    "ict": ("cloze",),
    "simcse": ("projector", "augmentation", "generator", "masking", "head", "rated", "text_tokens"),
    "diffcse": ("projector", "difference", "generator", "head", "rated", "text_tokens"),
}
"""Keys that each objective reads besides its training."""


class PretrainingPhase(Config):
    """A phase of pre-training on documents alone."""

    objective: Literal["simlm", "cocondenser", "ict", "simcse", "diffcse"] = "simlm"
    """Pre-training objective. `simlm`: the bottleneck objective with the options of `bottleneck`. `cocondenser`: the
    same over two spans of each document, which must find each other in the view `batch`. `ict`: the inverse cloze task.
    `simcse`: two views of a text differ by dropout. `diffcse`: `simcse` and difference prediction. With `towers:
    separate`, `ict` trains both towers, each on its side of the pairs. The other objectives train one encoder, from
    which both towers then begin (Zhang et al., 2022, section 4.2)."""
    bottleneck: BottleneckConfig = BottleneckConfig()
    spans: SpanConfig = SpanConfig()
    cloze: ClozeConfig = ClozeConfig()
    projector: ProjectorConfig | None = None
    """Layer on top of the vectors during training. If null, `tanh` for SimCSE and `batchnorm` for DiffCSE."""
    augmentation: AugmentationConfig | None = None
    """Edited copies of the texts as further examples. If null, there are none."""
    difference: DifferenceConfig | None = None
    """Edits of texts, and the prediction about them. If null, DiffCSE's defaults."""
    masking: MaskedLanguageModelingConfig | None = Field(None, exclude_if=lambda masking: masking is None)
    """Masked language modelling in addition to SimCSE, with a loss over `masked`. Gao et al. (2021) use weight .1 and
    `{rate: 0.15, unit: tokens, masked_as: bert, average: tokens}`. If null, there is none."""
    generator: GeneratorPhase | None = None
    """Generator that replaces or inserts tokens. Null if no token is replaced or inserted."""
    head: MaskedLanguageModelConfig | None = None
    """Masked language model whose head predicts tokens. If null, the head is new."""
    rated: AnyLabelledSource | None = None
    """Rated pairs to validate on, such as STS-B's development split. `train.validate_on_dev: {measure: Spearman}`
    measures the correlation on all of them and keeps the best checkpoint. If the source has several splits, its
    `splits` names the one for `validate_on_dev.split`. If null, there is no validation on pairs."""
    text_tokens: int | None = Field(None, ge=3, exclude_if=lambda tokens: tokens is None)
    """Number of tokens of a text that SimCSE and DiffCSE learn from, special tokens included. The public code
    trains on 32 tokens, and does not cut the sentences that it measures. If null, as many as the retriever reads
    (`retriever.document_tokens`)."""
    seed: int | None = None
    """Seed of one training that all seeds of the experiment share. Intervals and p-values over the seeds then leave out
    the chance in this training. If null, each seed has its own training. A phase after one that each seed trains is
    trained for each seed too."""
    train: TrainConfig

    @model_validator(mode="after")
    def _fits_the_objective(self) -> Self:
        keys = OPTIONS[self.objective]
        for key in sorted(self.model_fields_set - {"objective", "seed", "train", *keys}):
            if getattr(self, key) not in (None, type(self).model_fields[key].get_default()):  # a run's config has all
                raise ValueError(f"{key}: the objective {self.objective} does not read it; accepted: {listing(keys)}")
        differing = self.difference or DifferenceConfig()
        editor = {"diffcse": differing, "simcse": self.augmentation}.get(self.objective, self.bottleneck)
        if self.objective == "simcse":
            predicts = any(term.over == "masked" for term in self.train.losses)
            if predicts != (self.masking is not None):
                raise ValueError("masking: it and a loss over `masked` want each other; accepted: both, or neither")
            if self.head is not None and self.masking is None:
                raise ValueError("head: simcse without `masking` predicts no tokens; accepted: null")
        if self.objective == "diffcse":
            if not any(term.over == "discriminator" for term in self.train.losses):
                raise ValueError(
                    "train.losses: none is over `discriminator`, without which diffcse is simcse; "
                    "accepted: one that is, or `objective: simcse`"
                )
            if self.head is not None and differing.task == "detection":
                raise ValueError("head: `difference.task: detection` predicts no tokens; accepted: null")
        if "bottleneck" in keys:
            for term in self.train.losses:
                if wrong := self.bottleneck.unmasked(term.over):
                    raise ValueError(f"train.losses: {wrong}")
        check_generator(self.generator, "generator" in keys and editor is not None and editor.generates)
        look = self.train.validate_on_dev
        if (self.rated is not None) != (look is not None and look.measure == "Spearman"):
            raise ValueError("rated: `train.validate_on_dev: {measure: Spearman}` and rated pairs want each other")
        if self.rated is not None and look is not None:
            splits = getattr(self.rated, "splits", None)
            if splits is not None and list(splits) != [look.split]:
                raise ValueError(
                    f"rated.splits: {listing(splits)}; accepted: [{look.split}], or another split in "
                    "train.validate_on_dev.split"
                )
        return self

    @model_validator(mode="after")
    def _has_others_in_a_batch(self) -> Self:
        part = self.train.batch // self.train.accumulate
        if part < 2 and any(term.over == "batch" for term in self.train.losses):
            raise ValueError(
                f"train.batch: {self.train.batch}: a text is told from the others of its batch, or of its "
                "part of `accumulate`, and there are none; accepted: 2 or more there"
            )
        return self


Pretraining = Annotated[
    list[PretrainingPhase], BeforeValidator(lambda raw: raw if isinstance(raw, list) else [raw]), Field(min_length=1)
]
"""One phase, or several in order, such as masked language modelling and then DiffCSE."""


def pretrained(
    collection: Collection, begun: Model, phases: list[PretrainingPhase], config: CollectionConfig, seed: int
) -> list[Model]:
    """Return the retriever after each phase of pre-training on the collection's documents. If the retriever has two
    towers, an objective of one encoder trains a start model with shared towers. Both towers of the retriever then begin
    from that encoder."""
    models = [begun]
    reads = begun.step.inputs["config"]
    encoder: Step | None = None  # what objectives of one encoder have trained so far
    whole = [phase.objective for phase in phases if "bottleneck" in OPTIONS[phase.objective]]
    if whole and getattr(reads, "adapter", None) is not None:
        raise ValueError(f"adapter: {whole[0]} trains a copy of the encoder's own layers; accepted: null")
    if whole and getattr(reads, "pooling", None) == "first_last":
        raise ValueError(f"pooling: first_last: {whole[0]} reads the last layer's states; accepted: cls, mean")
    sentences = any(phase.objective in ("simcse", "diffcse") for phase in phases)
    if sentences and isinstance(reads, DualEncoderConfig):
        if wrong := not_one_encoder(reads.model_copy(update={"towers": "shared"})):
            raise ValueError(wrong)
        adapted = reads.adapter is not None and reads.adapter.dropout > 0
        if not adapted and (reads.dropout == 0 or (reads.dropout is None and lacks_dropout(reads))):
            dropout = "0" if reads.dropout == 0 else "null, and the model has none of its own"
            raise ValueError(f"retriever.dropout: {dropout}: views of a text differ by dropout; accepted: above 0")
    for i, phase in enumerate(phases):
        limit = getattr(reads, "document_tokens", None)
        if phase.text_tokens is not None and limit is not None and phase.text_tokens > limit:
            raise ValueError(
                f"text_tokens: {phase.text_tokens}: the retriever reads {limit} tokens of a text "
                f"(retriever.document_tokens); accepted: at most {limit}, or null"
            )
        name, writes = "pre-training", "generator"
        if len(phases) > 1:
            name, writes = f"{name} {i + 1}", f"{writes} {i + 1}"
        phase_seed = seed if phase.seed is None else phase.seed
        label, of_generator = (seeded(text, seed, config) if phase.seed is None else text for text in (name, writes))
        options: dict[str, Any] = {key: getattr(phase, key) for key in OPTIONS[phase.objective]}
        options = {key: value for key, value in options.items() if value is not None}
        if phase.objective == "diffcse":
            options.setdefault("difference", DifferenceConfig())
        if "generator" in options:
            edits = next(options[key] for key in ("difference", "augmentation", "bottleneck") if key in options)
            options["generator"] = generator(
                of_generator, collection, begun, options["generator"], phase_seed, edits=edits, tokens=phase.text_tokens
            )
        if "head" in options:
            if isinstance(reads, DualEncoderConfig):
                _check_vocabulary("head", options["head"], reads)
            options["language_model"] = step("head", start, config=options.pop("head"))
        dev = None
        if "rated" in options:
            dev = step("rated pairs", ingest, source=options["rated"])
            options["rated"] = step("rated pairs tokens", tokenize, data=dev, model=begun.step, config=config.tokens)
        split = phase.objective != "ict" and getattr(reads, "towers", None) == "separate"
        begins = models[-1].step
        if split:
            if encoder is None and i > 0:
                raise ValueError(
                    f"pretrain.{i}: {phase.objective} trains one encoder, and the phase before it has "
                    "trained two towers; accepted: `ict` as the last phase"
                )
            begins = encoder or _with_shared_towers(collection, reads).step
        learnt = _learnt(
            label,
            collection,
            begun,
            phase.objective,
            begins,
            config=phase.train,
            seed=[phase_seed, phase.objective, *([i] if i else [])],
            dev=dev,
            **options,
        )
        encoder = learnt if split else None
        models.append(begun.after(with_two_towers(f"{label}, two towers", reads, learnt) if split else learnt))
    return models[1:]


def with_two_towers(label: str, reads: DualEncoderConfig, encoder: Step) -> Step:
    """Return a retriever whose two towers begin from the encoder of a trained one with shared towers."""
    return step(label, start, config=reads, encoder=encoder)


def _with_shared_towers(collection: Collection, reads: DualEncoderConfig) -> Model:
    """Start a model like a retriever with two towers, but with one encoder for both sides, and without a projection,
    which objectives of one encoder do not train."""
    update: dict[str, Any] = {"towers": "shared", "share": [], "projection": None, "projection_norm": None}
    update |= {"projections": "apart", "truncate": None}
    return collection.initial_model("start encoder", reads.model_copy(update=update))


def generator(
    label: str,
    collection: Collection,
    model: Model,
    phase: GeneratorPhase,
    seed: int,
    *,
    edits: MaskConfig,
    tokens: int | None = None,
) -> Step:
    """Return the generator, after masked language modelling if that is configured. It learns from the first `tokens` of
    each text. ValueError if the files of both models show that the generator cannot replace tokens of what `model`
    reads."""
    if isinstance(reads := model.begun.inputs.get("config"), DualEncoderConfig):
        if tokens is not None:
            reads = reads.model_copy(update={"document_tokens": tokens})
        _check_tokens(phase.model, reads, edits)
    if phase.train is None:
        return step("start generator", start, config=phase.model)
    reader = model.tokens.inputs["model"].inputs.get("config")  # it learns from the same token store
    prompts = {key: getattr(reader, key, "") for key in ("query_prompt", "document_prompt")}
    begun = step("start generator", start, config=phase.model.model_copy(update=prompts))
    label, seed = (label, seed) if phase.seed is None else ("generator", phase.seed)
    key = [seed, "mlm"]
    return _learnt(label, collection, model, "mlm", begun, config=phase.train, seed=key, masking=phase.masking)


def _check_tokens(generator: MaskedLanguageModelConfig, retriever: DualEncoderConfig, edits: MaskConfig) -> None:
    """Raise ValueError if the generator cannot work on the retriever's tokens: it has other tokens or fewer positions,
    or whole words are masked and the tokenizer does not show where words begin. Without this check the run would fail
    only after the generator's training. Files that cannot be read are left to the training."""
    kind, most = kind_of_tokenizer(retriever), positions(generator)
    if edits.unit == "words" and kind not in (None, "WordPiece"):
        raise ValueError(
            f"unit: words: where they begin is known of WordPiece tokenizers alone, and that of "
            f"{retriever.model} is {kind}; accepted: tokens"
        )
    _check_vocabulary("generator", generator, retriever)
    if most is not None and most < (retriever.document_tokens or 0):
        raise ValueError(
            f"generator: {generator.model} reads at most {most} tokens, and the retriever's "
            f"document_tokens are {retriever.document_tokens}; accepted: one of as many"
        )


def _check_vocabulary(key: str, model: MaskedLanguageModelConfig, retriever: DualEncoderConfig) -> None:
    """Raise ValueError if the masked language model that a key names has other tokens than the retriever. Vocabularies
    that cannot be read are left to the training."""
    predicted, read = vocabulary(model), vocabulary(retriever)
    if predicted is not None and read is not None and predicted != read:
        raise ValueError(
            f"{key}: the vocabulary of {model.model} differs from the retriever's. Use a masked language model with "
            "the same tokens."
        )


def _learnt(
    label: str,
    collection: Collection,
    reads: Model,
    objective: str,
    begins: Step,
    *,
    config: TrainConfig,
    seed: list[Any],
    dev: Step | None = None,
    **inputs: Any,
) -> Step:
    """Train on the collection's documents, with the token store of the model that `reads` them. ValueError if
    validation is configured and no documents are held out for it."""
    return learnt(
        label,
        objective,
        config,
        start=begins,
        rows=collection.data,
        data=collection.data,
        tokens=reads.tokens,
        dev=dev,
        seed=seed,
        part="pre-training",
        **inputs,
    )
