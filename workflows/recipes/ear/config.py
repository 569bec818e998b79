"""What an EAR experiment says: generators, query rerankers, passage reranker, reader (Chuang et al., 2023, chapter
3)."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from sparring.components.config import Config as Part
from sparring.components.config import distinct, listing
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.expansion.targets import TargetConfig
from sparring.components.models.configs import CrossEncoderConfig
from sparring.components.models.generator_configs import GenerateConfig, GeneratorConfig
from sparring.components.models.reader_configs import ReadConfig, ReaderConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.kind import RetrieverConfig
from sparring.components.retrieval.lucene import RM3Config
from sparring.components.retrieval.screening import ScreenConfig
from sparring.components.training.config import TrainConfig, Validation
from sparring.components.yaml_files import merged
from sparring.workflows.stages.config import RetrievalConfig, check_candidates
from sparring.workflows.steps.expand import FileConfig
from sparring.workflows.steps.mine import MineConfig
from sparring.workflows.steps.query_rerank import PredictConfig
from sparring.workflows.steps.score import RerankConfig

Kind = Literal["ri", "rd"]


class Learn(Part):
    """How a language model learns to expand (GAR)."""

    targets: TargetConfig = TargetConfig()
    """What it should write."""
    train: TrainConfig
    """Its loss is usually `components.losses.likelihood.negative_log_likelihood`."""
    folds: int | None = Field(None, ge=2)
    """K generators, each trained without a part of the training queries, write the training examples of that part
    (Chuang et al., 2023, section 3.3.3: 5). Null: the one that is trained on all writes them, of texts that it may know
    by heart.
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
    """Null to ask it as it is, as T0 is (Chuang et al., 2023, section 3.4.2)."""
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

    @property
    def number(self) -> int | None:
        """Most expansions of a query. If None, as many as a file has."""
        source = self.relevance or self.file or (self.writer.generate if self.writer is not None else None)
        return None if source is None else source.number

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        sources = [name for name in ("relevance", "writer", "file") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"a generator is one of relevance, writer, file; given: {', '.join(sources) or 'none'}")
        return self


class RerankerModel(CrossEncoderConfig):
    """The model of a query reranker."""

    pooling: Literal["first", "cls", "mean", "last"] = "first"
    """What the score is made of. `first`, as in the public code: the first token's last state, through one linear
    layer. `cls`: the same, through the model's own classification head (DeBERTa's has a dense layer before the linear
    one). `mean`: the mean over the tokens, through a linear layer. `last`: the last token's state likewise, for causal
    language models."""


class RerankerValidation(Validation):
    """How a query reranker's checkpoint is chosen (Chuang et al., 2023, Appendix B.1)."""

    measure: Literal["rank", "accuracy"] = "rank"
    """`rank`, as in the public code: the lowest mean rank that the chosen expansions retrieve at, where one that
    retrieves nothing right has the rank k + 1. `accuracy`: how often the chosen expansion is as good as the best."""


class RerankerTraining(TrainConfig):
    """How a query reranker is trained."""

    validate_on_dev: RerankerValidation | None = None


class Reranker(Part):
    """A query reranker: a model, and how it learns to predict ranks."""

    model: RerankerModel
    template: Literal["paper", "released"] = "paper"
    """How what it reads is put together (`components.expansion.query_reading`): as Chuang et al. (2023) says, or as the
    public code does."""
    max_rank: int = Field(101, ge=1)
    """The rank of a training expansion that retrieves nothing right (the paper's MAX_RANK: 101 or 250); more than
    `k`."""
    train: RerankerTraining
    """Its loss is usually `components.losses.query_ranks.ranking`, its schedule `noam`."""


class RerankersOfGenerator(Part):
    """Which query rerankers there are."""

    ri: Reranker | None = None
    """Retrieval-independent: reads the expanded query alone (section 3.3.1)."""
    rd: Reranker | None = None
    """Retrieval-dependent: reads the first passage that it finds too (section 3.3.2)."""

    def given(self) -> dict[Kind, Reranker]:
        """The query rerankers that there are, by kind."""
        both: dict[Kind, Reranker | None] = {"ri": self.ri, "rd": self.rd}
        return {kind: reranker for kind, reranker in both.items() if reranker is not None}


class Rerankers(RerankersOfGenerator):
    """Which query rerankers there are, and what differs for some generators."""

    by_generator: dict[str, RerankersOfGenerator] = {}
    """By a generator's name, what is another for its rerankers (Chuang et al., 2023, Table B.2): keys of `ri` and `rd`,
    each over that of all generators."""

    @model_validator(mode="before")
    @classmethod
    def _merge(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or not isinstance(tree.get("by_generator"), dict):
            return tree
        of_all = {key: value for key, value in tree.items() if key != "by_generator"}
        by_generator = {
            name: merged(value, of_all) if isinstance(value, dict) else value
            for name, value in tree["by_generator"].items()
        }
        return {**of_all, "by_generator": by_generator}

    @model_validator(mode="after")
    def _all_generators_have_the_same_kinds(self) -> Self:
        for name, entry in self.by_generator.items():
            if entry.given().keys() != self.given().keys():
                raise ValueError(f"by_generator: {name}: {listing(entry.given())}; accepted: {listing(self.given())}")
        return self

    def of(self, generator: str) -> dict[Kind, Reranker]:
        """The query rerankers of a generator's expansions, by kind."""
        return self.by_generator.get(generator, self).given()


class Passages(Part):
    """A passage reranker, to set beside query rerankers (section 3.5). Its loss is over each passage by itself, as
    `components.losses.pointwise.binary_cross_entropy` in the paper."""

    model: CrossEncoderConfig
    depth: int = Field(10, ge=1)
    """The first so many passages of BM25's ranking of a training question are what it learns from, relevant or not
    (Appendix B.2: 10). Each is a training example of its own."""
    train: TrainConfig
    """`batch` counts pairs of a question and a passage (the paper: 128)."""
    rerank: RerankConfig = RerankConfig(depth=100)
    """How deep it goes."""
    other_depth: int | None = Field(None, ge=1)
    """A second depth to measure: as many passages as a query reranker has candidates (the paper: 25 and 32). Null for
    none."""
    top_queries: int | None = Field(None, ge=2)
    """Also rerank the fused rankings of so many expansions that a query reranker puts first. Null for not."""

    @model_validator(mode="after")
    def _looks_at_one_passage(self) -> Self:
        check_candidates(self.mining, self.train)
        return self

    @property
    def mining(self) -> MineConfig:
        """What the groups of its training are like: a question with one passage."""
        return MineConfig(negatives=0)


class ReaderPhase(Part):
    """A reader that writes answers out of what systems find (section 3.4.6)."""

    model: ReaderConfig
    """T5-large in the paper."""
    train: TrainConfig | None = None
    """With a loss as generators have; null for a reader that has learnt."""
    learn_from: Literal["BM25", "retriever"] = "BM25"
    """Whose ranking of the training questions it learns to read. `retriever`: the dense retriever's, as
    Fusion-in-Decoder's readers for these sets learn from DPR's passages (Izacard and Grave, 2021)."""
    passages: int = Field(10, ge=1)
    """The first so many of a ranking that it learns from."""
    visits: int = Field(1, ge=1)
    """How often each question is among the training rows, each time with a draw of its answers."""
    depths: Annotated[list[PositiveInt], AfterValidator(distinct)] = Field([10, 100], min_length=1)
    """How many passages it is given when it is measured (Table 3.5: 100 and 10)."""
    read: ReadConfig = ReadConfig()
    """How it is asked; `passages` is each of the depths in turn."""

    @model_validator(mode="after")
    def _is_not_judged(self) -> Self:
        if self.train is not None and self.train.validate_on_dev is not None:
            raise ValueError("train: validate_on_dev: a reader has no candidates to be judged on; leave it out")
        return self


class AllExpansionsConfig(FusionConfig):
    """How all expansions' rankings are fused without choosing."""

    generators: list[str] | None = Field(None, min_length=1)
    """The generators of these expansions, measured or not, such as one that writes beams beside those that sample. Null
    for all that are measured."""


class Config(RetrievalConfig):
    """Generators, query rerankers, and the dense retriever that they are fused with."""

    recipe: Literal["ear"]
    generators: dict[str, Generator] = Field(min_length=1)
    """By name, in the order in which their rankings are fused where `order` says nothing."""
    order: list[str] | None = None
    """The order in which the measured generators' rankings are fused, in the paper sentence, answer, title: a file with
    a `base` keeps the order of that one's generators."""
    generator_seed: int = 1
    """The seed of the generators. It is apart from `seeds`, those of query rerankers and the dense retriever, so that
    all of these choose from the same expansions."""
    relevant_by: Literal["answers", "qrels"] = "answers"
    """Which documents an expansion should retrieve: those that bear an answer, or those that are judged relevant."""
    include_question: bool = False
    """Whether the question without an expansion is a candidate too. In the paper and its code it is not."""
    rerankers: Rerankers
    training_queries: int | None = Field(None, ge=1)
    """Only so many training queries are learnt from, drawn by the seed; null for all."""
    training_candidates: int | None = Field(None, ge=2)
    """Only so many expansions of a training query are learnt from, drawn from all; null for all (the paper). Half of
    them tell about as much of how to rank in half the time, so that twice as many queries can be learnt from."""
    predict: PredictConfig = PredictConfig()
    fewer_expansions: Annotated[list[PositiveInt], AfterValidator(distinct)] = []
    """Also choose among only the first so many expansions, for each of these numbers (Table 3.8)."""
    fusion: FusionConfig = FusionConfig()
    """Of the generators' rankings."""
    retriever: RetrieverConfig
    """The dense retriever."""
    negatives: MineConfig = MineConfig(negatives=1)
    """Its hard negatives, out of BM25's ranking."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking; null for none beyond judged documents and copies."""
    train: TrainConfig | None = None
    """Its training; null to take the start model as it is."""
    dense_fusion: FusionConfig = FusionConfig()
    """Of a ranking with the dense retriever's (last block of Table 3.2)."""
    with_dense: Annotated[list[str], AfterValidator(distinct)] = Field([], exclude_if=lambda of: not of)
    """Further systems whose ranking is fused with the dense retriever's, beside BM25 and the query rerankers: `first
    expansion` (GAR + DPR), `all expansions`, `concat`, `RM3`, or one of `evaluate.other_rankings`."""
    hnsw: str | None = None
    """Also search the dense retriever's vectors by an approximate index of this FAISS factory string (Table 3.11:
    `HNSW`); null for not."""
    rm3: RM3Config | None = None
    """BM25 with relevance feedback by RM3, as Lucene has it, beside BM25; null for not."""
    all_expansions: AllExpansionsConfig | None = None
    """All expansions' rankings fused, without choosing, as contextual clue sampling does with beams (Liu et al. 2022;
    section 3.4.3); null for not."""
    to_dense: bool = False
    """Whether the chosen expansions are issued to the dense retriever too (section 3.6.2, Table 3.7)."""
    passages: Passages | None = None
    """Rerank the passages that the first expansion and the query rerankers' choices find (Table 3.6); null for not."""
    reader: ReaderPhase | None = None
    """Answer questions out of what BM25, the dense retriever, the first expansion and the query rerankers' choices find
    (Table 3.5); null for not."""
    models_from: str | None = None
    """Another EAR experiment's file, relative to where you run or to this config: its models are applied to this
    collection without training on it (section 3.4.5, Table 3.4). Generators, rerankers, retriever and reader are then
    what that file says."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, generator in self.generators.items():
            teacher = generator.learn_from
            if teacher is not None and teacher not in self.generators:
                raise ValueError(f"generators: {name}: learn_from: {teacher!r}; accepted: {', '.join(self.generators)}")
        measured = [name for name, generator in self.generators.items() if generator.measured]
        if not measured:
            raise ValueError("generators: of none the rankings are measured")
        if self.order is not None and sorted(self.order) != sorted(measured):
            raise ValueError(f"order: {', '.join(self.order)}; accepted: each of {', '.join(measured)} once")
        for key, fusion, lists in (("fusion", self.fusion, len(measured)), ("all_expansions", self.all_expansions, 0)):
            if fusion is not None and fusion.weight != 0.5 and lists != 2:
                reason = f"{lists} generators are measured" if lists else "a query has as many as it has expansions"
                raise ValueError(
                    f"{key}: weight: {fusion.weight} is that of the second of two lists, and {reason}; accepted: 0.5"
                )
        for name in measured if self.models_from is None else []:
            source = self.generators[name].learn_from or name
            number = self.generators[source].number
            if self.rerankers.of(name) and number is not None and number + self.include_question < 2:
                raise ValueError(
                    f"generators: {source}: number: 1: of one expansion a reranker learns nothing; accepted: 2 or more"
                )
        if self.reader is not None:
            read = {"depths": max(self.reader.depths), "passages": self.reader.passages if self.reader.train else 0}
            for key in (key for key, many in read.items() if many > self.k):
                raise ValueError(
                    f"reader: {key}: {read[key]} passages, and k: {self.k} documents are retrieved; "
                    f"accepted: at most {self.k}"
                )
        unknown = [name for name in self.rerankers.by_generator if name not in measured]
        if unknown:
            raise ValueError(f"rerankers: by_generator: {listing(unknown)}; accepted: {listing(measured)}")
        for name in measured:
            for kind, reranker in self.rerankers.of(name).items():
                if (rank := reranker.max_rank) <= self.k:
                    raise ValueError(
                        f"rerankers: {kind}: max_rank: {rank}: an expansion that finds nothing would be "
                        f"as good as one that does; accepted: more than k, {self.k}"
                    )
        return self

    def measured(self) -> list[str]:
        """The generators whose rankings are fused, in their order."""
        return self.order or [name for name, generator in self.generators.items() if generator.measured]

    def kinds(self) -> list[Kind]:
        """The kinds of query rerankers that there are."""
        return list(self.rerankers.given())

    def reranker_trainings(self) -> list[TrainConfig]:
        """How each query reranker is trained."""
        return [reranker.train for name in self.measured() for reranker in self.rerankers.of(name).values()]
