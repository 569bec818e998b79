"""Parts that the configs of retrieval recipes share."""

from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from sparring.components.config import Config, distinct
from sparring.components.data.tables import DEV
from sparring.components.evaluation.embedding_space import EmbeddingSpaceConfig
from sparring.components.evaluation.measures import Measure, at_level, needs_answers
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig, MaskedLanguageModelConfig
from sparring.components.objectives.parts.config import DifferenceConfig, MaskedLanguageModelingConfig
from sparring.components.retrieval.lucene import BM25Config
from sparring.components.retrieval.screening import ScreenConfig
from sparring.components.sources.base import AnySource
from sparring.components.training.config import TrainConfig
from sparring.components.training.terms import LossTerm
from sparring.workflows.stages.budget import BudgetConfig
from sparring.workflows.stages.contender import Contender
from sparring.workflows.steps.answers import AnswerConfig
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.evaluate import EntropyConfig
from sparring.workflows.steps.imported_ranking import RankingFile
from sparring.workflows.steps.lucene import LuceneIndexConfig
from sparring.workflows.steps.mine import MineConfig
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.steps.tokenize import TokenizeConfig


class Default(NamedTuple):
    """A number that the config left out and the recipe filled in."""

    key: str
    value: Any
    reason: str
    guessed: bool = False
    """True if it was chosen without reading the collection's files."""


class LexicalConfig(Config):
    """Settings of BM25: its index, and the search."""

    index: LuceneIndexConfig = LuceneIndexConfig()
    search: BM25Config = BM25Config()


class EvaluateConfig(Config):
    """Settings of the evaluation: measures and queries."""

    split: str = "test"
    """Split whose queries are measured. No model is trained on them."""
    select: str | None = DEV
    """Split for every choice that is made by queries but is no training, such as the weights of fusions. It also
    selects the comparison that leads the results: the best trained system against the best untrained one. All systems
    are measured on it too. If null, nothing is selected. If it is the measured split, nothing is selected either."""
    relevant_from: int = Field(1, ge=1)
    """Lowest grade that counts as relevant. nDCG uses the grades themselves. For TREC DL, 2 is the strict reading and 1
    the lenient one. A measure may name its own grade: `RR(rel=2)@10`. A judged query without a document of that grade
    counts 0, as in trec_eval."""
    measures: list[Measure] = Field(["RR@10", "Success@5", "R@100"], validate_default=True)
    """Names of measures, as in `ir_measures`."""
    other_qrels: dict[str, AnySource] = {}
    """Further judgements of the same queries, by the collection name for tables. The rankings are measured by these
    too. Only the qrels of the sources are read. TripClick, for example, has a second set of labels."""
    other_rankings: dict[str, RankingFile] = Field({}, exclude_if=lambda files: not files)
    """Files with rankings of other systems, by the name for tables."""
    entropy: EntropyConfig = EntropyConfig()
    """Entropy of the retriever's distribution over its first documents. If null, it is not measured."""

    @field_validator("measures")
    @classmethod
    def _at_level(cls, names: list[str], info: ValidationInfo) -> list[str]:
        level = info.data.get("relevant_from", 1)
        return list(dict.fromkeys(at_level(name, level) for name in names))

    @property
    def select_by(self) -> str | None:
        """The measure for choices: the first by judgements. None if no measure is by judgements."""
        return next((measure for measure in self.measures if not needs_answers(measure)), None)


class CollectionConfig(Config):
    """Settings of one collection: its source, search and evaluation."""

    data: AnySource
    seeds: Annotated[list[int], AfterValidator(distinct)] = Field([1], min_length=1)
    """Seeds. Each has a whole training of its own. Tables show means over the seeds, and comparisons are between
    means."""
    k: int = Field(100, ge=1)
    """Number of documents retrieved for a query."""
    tokens: TokenizeConfig = TokenizeConfig()
    answers: AnswerConfig = AnswerConfig()
    bm25: LexicalConfig = LexicalConfig()
    encode: EncodeConfig = EncodeConfig()
    search: SearchConfig = SearchConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    contenders: dict[str, Contender] = Field({}, exclude_if=lambda contenders: not contenders)
    """Systems that you run today, by the name for tables. They are rows like others, and may be chosen. The system to
    deploy is compared with each."""
    budget: BudgetConfig | None = Field(None, exclude_if=lambda budget: budget is None)
    """Limits on the chosen system. If it is there, every system that could be chosen is measured: one query after
    another, its memory and its size. Without limits (`{}`) nothing is excluded. If null, nothing is measured so."""
    analyse: EmbeddingSpaceConfig | None = None
    """Analysis of each measured retriever's embedding space: numbers and pictures in the report. If null, there is
    none."""


class RetrievalConfig(CollectionConfig):
    """Settings of every retrieval recipe."""

    recipe: str

    @field_validator("evaluate")
    @classmethod
    def _measures_something(cls, evaluate: EvaluateConfig) -> EvaluateConfig:
        if not evaluate.measures:
            raise ValueError("measures: none; accepted: one or more, such as RR@10")
        return evaluate


class FastConfig(Config):
    """A smaller retriever."""

    layers: int = Field(ge=1)
    """Number of layers: the first ones of the start model."""


class GeneratorPhase(Config):
    """Generator that replaces tokens, such as ELECTRA's."""

    model: MaskedLanguageModelConfig
    masking: MaskedLanguageModelingConfig = MaskedLanguageModelingConfig()
    train: TrainConfig | None = None
    """Masked language modelling on the documents before the generator is used, for a model without such a head. If
    null, the model is used as it is."""
    seed: int | None = None
    """Seed of one training that all seeds of the experiment share. Intervals and p-values over the seeds then leave out
    the chance in this training. If null, each seed has its own training."""


class DifferenceKeys(Config):
    """Difference prediction in addition to a retriever's training: DPR with DiffCSE (Chuang, 2024, section 2.7). Its
    losses are over `query discriminator` and `document discriminator`. The paper has one encoder for both sides. With
    `towers: separate`, one discriminator reads the vectors of both towers and begins as a copy of the document
    tower."""

    difference: DifferenceConfig | None = None
    """Edits of texts, and the prediction about them. If null, nothing is predicted."""
    generator: GeneratorPhase | None = None
    """Generator that edits texts. Null without `difference`, or if the edits need no generator."""

    @model_validator(mode="after")
    def _has_its_generator(self) -> Self:
        check_generator(self.generator, self.difference is not None and self.difference.generates)
        return self


class TrainingPhase(DifferenceKeys):
    """Settings of mining groups and training on them."""

    screen: ScreenConfig | None = None
    """False-negative control over the ranking that negatives are sampled from. If null, only judged documents and
    copies of these are left out."""
    mine: MineConfig
    train: TrainConfig

    @model_validator(mode="after")
    def _can_learn(self) -> Self:
        check_difference(self.difference, self.train)
        check_candidates(self.mine, self.train)
        return self


def predicts_differences(train: TrainConfig | None) -> bool:
    """Tell whether a retriever's training has losses over differences."""
    return train is not None and any(term.over.endswith(" discriminator") for term in train.losses)


def check_difference(difference: DifferenceConfig | None, *trainings: TrainConfig | None) -> None:
    """Raise ValueError if differences are to be predicted and no training has a loss over them."""
    if difference is not None and not any(map(predicts_differences, trainings)):
        raise ValueError(
            "difference: no loss is over them; accepted: null, or losses with `over: query discriminator` and `over: "
            "document discriminator`"
        )
    if difference is not None and difference.edits_of != "same":
        raise ValueError(f"difference: edits_of: {difference.edits_of}: candidates have no next text; accepted: same")


def check_candidates(mine: MineConfig, *trainings: TrainConfig | None) -> None:
    """Raise ValueError if a loss compares candidates and a training has no negatives for it."""
    candidates = 1 + mine.negatives + mine.random
    for train in filter(None, trainings):
        counts = {"group": candidates, "batch": candidates * -(-train.batch // train.accumulate)}
        if all(counts.get(term.over, 2) < 2 and not _looks_at_one(term) for term in train.losses):
            raise ValueError(
                "train.losses: a query's relevant document is told from others, and there are none; "
                "accepted: negatives, or larger batches with `over: batch`"
            )


def _looks_at_one(term: LossTerm) -> bool:
    """Tell whether a loss can learn from a single candidate: it reads candidates one by one, or a user wrote it."""
    return not term.function.startswith("components.losses.") or term.function.split(".")[2] in ("pointwise", "irgan")


def check_generator(generator: GeneratorPhase | None, generates: bool) -> None:
    """Raise ValueError for a generator that nothing uses, or if tokens are generated without a generator."""
    if generator is None and generates:
        raise ValueError(
            "generator: null, and tokens are to be replaced or inserted; accepted: a masked language model"
        )
    if generator is not None and not generates:
        raise ValueError("generator: nothing here asks it; accepted: null")


def check_encoder(encoder: str, ranker: CrossEncoderConfig, retriever: DualEncoderConfig) -> None:
    """Raise ValueError if the ranker cannot begin from the encoder of the retriever that the key `encoder` names."""
    if (ranker.model, ranker.revision, ranker.layers) != (retriever.model, retriever.revision, retriever.layers):
        raise ValueError(f"ranker.encoder: {encoder}: ranker.model must be made from the retriever's model")
    if retriever.towers == "separate":
        raise ValueError(f"ranker.encoder: {encoder}: accepted only where queries and documents share one")
    if ranker.adapter not in (None, retriever.adapter):
        raise ValueError(
            f"ranker.adapter: with ranker.encoder: {encoder} it begins from the retriever's; accepted: "
            "the same, or null"
        )


def seeded(label: str, seed: int, config: CollectionConfig) -> str:
    """Add the seed to a label if there are several seeds."""
    return f"{label} (seed {seed})" if len(config.seeds) > 1 else label
