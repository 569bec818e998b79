"""What the configs of retrieval recipes have in common."""

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
from sparring.workflows.steps.answers import AnswerConfig
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.evaluate import EntropyConfig
from sparring.workflows.steps.imported_ranking import RankingFile
from sparring.workflows.steps.lucene import LuceneIndexConfig
from sparring.workflows.steps.mine import MineConfig
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.steps.tokenize import TokenizeConfig


class Default(NamedTuple):
    """A number that a config left open and the recipe filled in."""

    key: str
    value: Any
    reason: str
    guessed: bool = False
    """Whether it was chosen without the collection's files."""


class LexicalConfig(Config):
    """BM25: its index, and how the index is searched."""

    index: LuceneIndexConfig = LuceneIndexConfig()
    search: BM25Config = BM25Config()


class EvaluateConfig(Config):
    """What is measured, on which queries."""

    split: str = "test"
    """The split whose queries are never trained on."""
    select: str | None = DEV
    """The split that systems are selected on for the comparison that leads the results, the best trained system against
    the best untrained one, that weights of fusions are chosen on, and whatever else is decided by queries that no model
    is trained on. All systems are measured on it too. Null for none of this. Where it is the measured split itself,
    nothing is selected."""
    relevant_from: int = Field(1, ge=1)
    """The lowest grade that counts as relevant, for all measures but nDCG, which uses the grades: 2 is the strict
    reading of TREC DL's grades, 1 the lenient one. A measure may name its own: `RR(rel=2)@10`. A judged query without a
    document of that grade counts 0, as in trec_eval."""
    measures: list[Measure] = Field(["RR@10", "Success@5", "R@100"], validate_default=True)
    """In `ir_measures`' names."""
    other_qrels: dict[str, AnySource] = {}
    """Other judgements of the same queries, by the collection name that their results have in tables. The rankings are
    measured by them too. Of these sources only the qrels are read. An example is TripClick with its other labels."""
    other_rankings: dict[str, RankingFile] = Field({}, exclude_if=lambda files: not files)
    """Rankings of other systems, from files, by the name that tables show: SEAL's beside EAR's."""
    entropy: EntropyConfig = EntropyConfig()
    """Of the retriever's distribution over its first documents."""

    @field_validator("measures")
    @classmethod
    def _at_level(cls, names: list[str], info: ValidationInfo) -> list[str]:
        level = info.data.get("relevant_from", 1)
        return list(dict.fromkeys(at_level(name, level) for name in names))

    @property
    def select_by(self) -> str | None:
        """The measure that is chosen by: the first by judgements; None where there is none."""
        return next((measure for measure in self.measures if not needs_answers(measure)), None)


class CollectionConfig(Config):
    """One collection: how it is read, searched and measured."""

    data: AnySource
    seeds: Annotated[list[int], AfterValidator(distinct)] = Field([1], min_length=1)
    """One whole training for each. Tables show the mean over them, and comparisons are between means."""
    k: int = Field(100, ge=1)
    """Documents retrieved for a query."""
    tokens: TokenizeConfig = TokenizeConfig()
    answers: AnswerConfig = AnswerConfig()
    bm25: LexicalConfig = LexicalConfig()
    encode: EncodeConfig = EncodeConfig()
    search: SearchConfig = SearchConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    analyse: EmbeddingSpaceConfig | None = None
    """What the embedding space of each measured retriever looks like: numbers and pictures in the report. Null for
    none."""


class RetrievalConfig(CollectionConfig):
    """What every retrieval recipe has."""

    recipe: str

    @field_validator("evaluate")
    @classmethod
    def _measures_something(cls, evaluate: EvaluateConfig) -> EvaluateConfig:
        if not evaluate.measures:
            raise ValueError("measures: none; accepted: one or more, such as RR@10")
        return evaluate


class GeneratorPhase(Config):
    """The generator that replaces tokens, such as ELECTRA's."""

    model: MaskedLanguageModelConfig
    masking: MaskedLanguageModelingConfig = MaskedLanguageModelingConfig()
    train: TrainConfig | None = None
    """Masked language modelling on the documents before it is asked, for a model without such a head. Null to take it
    as it is."""
    seed: int | None = None
    """One training, with this seed, for all seeds of the experiment: intervals and p over the seeds do then not count
    it as chance. Null for one a seed."""


class DifferenceKeys(Config):
    """Difference prediction beside a retriever's training, which makes DPR with DiffCSE of it (Chuang, 2024, section
    2.7): losses over `query discriminator` and `document discriminator`. The paper has one encoder for both sides; with
    `towers: separate` one discriminator reads behind the vectors of either tower, and begins as the document's."""

    difference: DifferenceConfig | None = None
    """What is edited and predicted. Null for none."""
    generator: GeneratorPhase | None = None
    """What edits texts. Null where `difference` is, or needs none."""

    @model_validator(mode="after")
    def _has_its_generator(self) -> Self:
        check_generator(self.generator, self.difference is not None and self.difference.generates)
        return self


class TrainingPhase(DifferenceKeys):
    """Training groups, and a training on them."""

    screen: ScreenConfig | None = None
    """False-negative control over the ranking that negatives are drawn from. Null leaves out judged documents and
    copies of them alone."""
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
    """Tell whether a loss may learn from one candidate: it reads candidates one by one, or a user wrote it."""
    return not term.function.startswith("components.losses.") or term.function.split(".")[2] in ("pointwise", "irgan")


def check_generator(generator: GeneratorPhase | None, generates: bool) -> None:
    """Raise ValueError for a generator that nothing uses, or if tokens are generated without one."""
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
