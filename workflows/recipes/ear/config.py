"""What an EAR experiment says: generators, query rerankers, passage reranker, reader (paper 002, chapter 3)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.fusion import FusionConfig
from components.generator_configs import GenerateConfig, GeneratorConfig
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.reader_configs import ReadConfig, ReaderConfig
from components.relevance_model import RelevanceConfig
from components.screening import ScreenConfig
from components.targets import TargetConfig
from components.train_config import TrainConfig
from workflows.parts import Base, Phase
from workflows.steps.expand import FileConfig
from workflows.steps.lucene import RM3Config
from workflows.steps.mine import MineConfig
from workflows.steps.query_rerank import PredictConfig
from workflows.steps.score import RerankConfig

Kind = Literal["ri", "rd"]


class Learn(Part):
    """How a language model learns to expand (GAR)."""

    targets: TargetConfig = TargetConfig()
    """What it should write."""
    train: TrainConfig
    """Its loss is usually `components.losses.likelihood.negative_log_likelihood`."""
    folds: int | None = Field(None, ge=2)
    """K generators, each trained without a part of the training queries, write the training examples of that part
    (paper 002, section 3.3.3: 5). Null: the one that is trained on all writes them, of texts that it may know by heart.
    """

    @model_validator(mode="after")
    def _is_not_judged(self) -> Self:
        if self.train.validate_on_dev is not None:
            raise ValueError("train: validate_on_dev: a generator has no candidates to be judged on; leave it out")
        return self


class Writer(Part):
    """A language model as a generator."""

    model: GeneratorConfig
    learn: Learn | None = None
    """Null to ask it as it is, as T0 is (paper 002, section 3.4.2)."""
    generate: GenerateConfig = GenerateConfig()

    @model_validator(mode="after")
    def _is_asked_as_it_learnt(self) -> Self:
        if self.learn is not None and self.generate.prompt != "{query}":
            raise ValueError(f"generate: prompt: {self.generate.prompt!r}; accepted with learn: '{{query}}'")
        return self


class Generator(Part):
    """Where a query's expansions come from: one of three."""

    relevance: RelevanceConfig | None = None
    """From what the query itself finds; needs no language model."""
    writer: Writer | None = None
    """From a language model."""
    file: FileConfig | None = None
    """From a file."""
    learn_from: str | None = None
    """The generator whose expansions of the training queries its rerankers learn from; null for its own. In the paper
    all learn from T0's."""
    measured: bool = True
    """Whether its rankings are among those that are fused; false for one that others alone learn from."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [name for name in ("relevance", "writer", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a generator is one of relevance, writer, file; given: {', '.join(given) or 'none'}")
        return self


class Reranker(Part):
    """A query reranker: a model, and how it learns to predict ranks."""

    model: CrossEncoderConfig
    template: Literal["paper", "released"] = "paper"
    """How what it reads is put together (`components.query_reading`): as paper 002 says, or as the public code does."""
    train: TrainConfig
    """Its loss is usually `components.losses.query_ranks.ranking`, its schedule `noam`."""

    @model_validator(mode="after")
    def _predicts_ranks(self) -> Self:
        look = self.train.validate_on_dev
        if look is not None and look.measure != "accuracy":
            raise ValueError("train: validate_on_dev: measure: accepted for a query reranker: accuracy")
        return self


class Rerankers(Part):
    """Which query rerankers there are."""

    ri: Reranker | None = None
    """Retrieval-independent: reads the expanded query alone (section 3.3.1)."""
    rd: Reranker | None = None
    """Retrieval-dependent: reads the first passage that it finds too (section 3.3.2)."""


class Passages(Phase):
    """A passage reranker, to set beside query rerankers (section 3.5). Its loss: `components.losses.pointwise`'s
    `binary_cross_entropy` as in the paper, or one over the list."""

    model: CrossEncoderConfig
    mine: MineConfig = MineConfig(negatives=9, depth=10)
    """Its groups, out of BM25's ranking (Appendix B.2: the first 10)."""
    rerank: RerankConfig = RerankConfig(depth=100)
    """How deep it goes."""
    as_many: int | None = Field(None, ge=1)
    """Also so deep alone: as many passages as a query reranker has candidates (the paper: 25 and 32)."""
    queries: int | None = Field(None, ge=2)
    """Also of the first so many queries that a reranker puts first, their rankings fused; null for not."""


class Reading(Part):
    """A reader that writes answers out of what systems find (section 3.4.6)."""

    model: ReaderConfig
    """T5-large in the paper."""
    train: TrainConfig | None = None
    """On BM25's ranking of the training queries, with a loss as generators have; null for a reader that has learnt."""
    passages: int = Field(10, ge=1)
    """The first so many of a ranking that it learns from."""
    visits: int = Field(1, ge=1)
    """How often each question is among the training rows, each time with a draw of its answers."""
    depths: list[int] = Field([10, 100], min_length=1)
    """How many passages it is given when it is measured (Table 3.5: 100 and 10)."""
    read: ReadConfig = ReadConfig()
    """How it is asked; `passages` is each of the depths in turn."""

    @model_validator(mode="after")
    def _is_not_judged(self) -> Self:
        if self.train is not None and self.train.validate_on_dev is not None:
            raise ValueError("train: validate_on_dev: a reader has no candidates to be judged on; leave it out")
        return self


class CluesConfig(FusionConfig):
    """How all expansions' rankings are fused without choosing (contextual clue sampling)."""

    of: list[str] | None = Field(None, min_length=1)
    """The generators whose expansions these are, measured or not, such as one of beams beside those that are sampled;
    null for all that are measured."""


class EarConfig(Base):
    """Generators, query rerankers, and the dense retriever that they are fused with."""

    generators: dict[str, Generator] = Field(min_length=1)
    """By name, in the order in which their rankings are fused where `order` says nothing."""
    order: list[str] | None = None
    """The order in which the measured generators' rankings are fused, in the paper sentence, answer, title: a file with
    a `base` keeps the order of that one's generators."""
    draw: int = 1
    """The seed of the generators. It is not among `seeds`: those are of query rerankers and the dense retriever, which
    all choose from the same expansions."""
    good: Literal["answers", "qrels"] = "answers"
    """What makes a ranking good: a document that bears an answer, or one that is relevant."""
    max_rank: int = Field(101, ge=1)
    """The rank of an expansion that finds no such document (the paper's MAX_RANK); more than `k`."""
    question: bool = False
    """Whether the question as it is is one of the candidates, beside what expands it. In the paper, and in the public
    code, it is not."""
    rerankers: Rerankers
    training_queries: int | None = Field(None, ge=1)
    """Only so many training queries are learnt from, drawn by the seed; null for all."""
    training_candidates: int | None = Field(None, ge=2)
    """Only so many expansions of a training query are learnt from, drawn from all; null for all (the paper). Half of
    them tell about as much of how to rank in half the time, so that twice as many queries can be learnt from."""
    predict: PredictConfig = PredictConfig()
    fewer: list[int] = []
    """Also choose among the first so many expansions alone, of the same that were drawn (Table 3.8)."""
    fusion: FusionConfig = FusionConfig()
    """Of the generators' rankings."""
    retriever: DualEncoderConfig
    """The dense retriever."""
    negatives: MineConfig = MineConfig(negatives=1)
    """Its hard negatives, out of BM25's ranking."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking; null for none beyond judged documents and copies."""
    train: TrainConfig | None = None
    """Its training; null to take the start model as it is."""
    dense_fusion: FusionConfig = FusionConfig()
    """Of a ranking with the dense retriever's (last block of Table 3.2)."""
    hnsw: str | None = None
    """Also search the dense retriever's vectors by an approximate index of this FAISS factory string (Table 3.11:
    `HNSW`); null for not."""
    rm3: RM3Config | None = None
    """BM25 with relevance feedback by RM3, as Lucene has it, beside BM25; null for not."""
    clues: CluesConfig | None = None
    """All expansions' rankings fused, without choosing, as contextual clue sampling does with beams (Liu et al. 2022;
    section 3.4.3); null for not."""
    to_dense: bool = False
    """Whether the chosen expansions are issued to the dense retriever too (section 3.6.2, Table 3.7)."""
    passages: Passages | None = None
    """Rerank the passages that the first expansion and the query rerankers' choices find (Table 3.6); null for not."""
    reader: Reading | None = None
    """Answer questions out of what BM25, the first expansion and the query rerankers' choices find (Table 3.5); null
    for not."""
    models_from: str | None = None
    """Another EAR experiment's file, relative to where you run: its models are applied to this collection without
    training on it (section 3.4.5, Table 3.4). Generators, rerankers, retriever and reader are then what that file
    says."""

    def measured(self) -> list[str]:
        """The generators whose rankings are fused, in their order."""
        return self.order or [name for name, generator in self.generators.items() if generator.measured]

    def kinds(self) -> list[tuple[Kind, Reranker]]:
        """The query rerankers that there are."""
        both: list[tuple[Kind, Reranker | None]] = [("ri", self.rerankers.ri), ("rd", self.rerankers.rd)]
        return [(kind, reranker) for kind, reranker in both if reranker is not None]
