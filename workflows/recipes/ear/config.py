"""The config of an EAR experiment: generators, query rerankers, passage reranker, reader (Chuang et al., 2023, chapter
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
    """Training of a language model to expand queries (GAR)."""

    targets: TargetConfig = TargetConfig()
    """Texts that it learns to write."""
    train: TrainConfig
    """Training. Its loss is usually `components.losses.likelihood.negative_log_likelihood`."""
    folds: int | None = Field(None, ge=2)
    """Number of generators, each trained without one part of the training queries, that write the training examples of
    that part (Chuang et al., 2023, section 3.3.3: 5). If null, one generator is trained on all queries and writes all
    examples, although it may know these texts by heart."""

    @model_validator(mode="after")
    def _is_not_judged(self) -> Self:
        if self.train.validate_on_dev is not None:
            raise ValueError("train: validate_on_dev: a generator has no candidates to be judged on; leave it out")
        return self


class Writer(Part):
    """A language model as a generator."""

    model: GeneratorConfig
    learn: Learn | None = None
    """Training of the language model. Null uses it as it is, like T0 (Chuang et al., 2023, section 3.4.2)."""
    generate: GenerateConfig = GenerateConfig()

    @model_validator(mode="after")
    def _is_asked_as_it_learnt(self) -> Self:
        if self.learn is not None and self.generate.prompt != "{query}":
            raise ValueError(f"generate: prompt: {self.generate.prompt!r}; accepted with learn: '{{query}}'")
        return self


class Generator(Part):
    """Source of a query's expansions: one of three."""

    relevance: RelevanceConfig | None = None
    """Expansions from what the query itself retrieves. It needs no language model."""
    writer: Writer | None = None
    """Expansions from a language model."""
    file: FileConfig | None = None
    """Expansions from a file."""
    learn_from: str | None = None
    """Generator whose expansions of the training queries its rerankers learn from. Null is its own. In the paper all
    learn from T0's."""
    measured: bool = True
    """Fuse its rankings with those of the other measured generators. False for a generator that only others learn
    from."""

    @property
    def number(self) -> int | None:
        """Maximum number of expansions of a query. If None, it is the number that a file has."""
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
    """Source of the score. `first`, as in the public code: the first token's last state, through one linear layer.
    `cls`: the same, through the model's own classification head (DeBERTa's has a dense layer before the linear one).
    `mean`: the mean over the tokens, through a linear layer. `last`: the last token's state through a linear layer, for
    causal language models."""


class RerankerValidation(Validation):
    """Selection of a query reranker's checkpoint (Chuang et al., 2023, Appendix B.1)."""

    measure: Literal["rank", "accuracy"] = "rank"
    """Measure to select by. `rank`, as in the public code: the lowest mean rank that the chosen expansions retrieve at.
    An expansion that retrieves nothing right has the rank k + 1. `accuracy`: the share of queries whose chosen
    expansion is as good as the best."""


class RerankerTraining(TrainConfig):
    """Training of a query reranker."""

    validate_on_dev: RerankerValidation | None = None


class Reranker(Part):
    """A query reranker: a model, and its training to predict ranks."""

    model: RerankerModel
    template: Literal["paper", "released"] = "paper"
    """Layout of the input (`components.expansion.query_reading`). `paper`: as Chuang et al. (2023) describe it.
    `released`: as the public code has it."""
    max_rank: int = Field(101, ge=1)
    """Rank of a training expansion that retrieves nothing right (the paper's MAX_RANK: 101 or 250). It must be more
    than `k`."""
    train: RerankerTraining
    """Training. Its loss is usually `components.losses.query_ranks.ranking`, and its schedule `noam`."""


class RerankersOfGenerator(Part):
    """Query rerankers of a generator's expansions."""

    ri: Reranker | None = None
    """Retrieval-independent reranker: it reads the expanded query alone (section 3.3.1). Null for none."""
    rd: Reranker | None = None
    """Retrieval-dependent reranker: it also reads the first passage that the query retrieves (section 3.3.2). Null for
    none."""

    def given(self) -> dict[Kind, Reranker]:
        """Return the configured query rerankers, by kind."""
        both: dict[Kind, Reranker | None] = {"ri": self.ri, "rd": self.rd}
        return {kind: reranker for kind, reranker in both.items() if reranker is not None}


class Rerankers(RerankersOfGenerator):
    """Query rerankers, and what differs for some generators."""

    by_generator: dict[str, RerankersOfGenerator] = {}
    """Differences for the rerankers of a generator, by the generator's name (Chuang et al., 2023, Table B.2). They are
    keys of `ri` and `rd`, and each replaces the value for all generators."""

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
        """Return the query rerankers of a generator's expansions, by kind."""
        return self.by_generator.get(generator, self).given()


class Passages(Part):
    """A passage reranker, to compare with query rerankers (section 3.5). Its loss is over each passage by itself, such
    as `components.losses.pointwise.binary_cross_entropy` in the paper."""

    model: CrossEncoderConfig
    depth: int = Field(10, ge=1)
    """Number of first passages of BM25's ranking of a training question that it learns from, relevant or not (Appendix
    B.2: 10). Each passage is a training example."""
    train: TrainConfig
    """Training. `batch` counts pairs of a question and a passage (the paper: 128)."""
    rerank: RerankConfig = RerankConfig(depth=100)
    """Depth of the reranking."""
    other_depth: int | None = Field(None, ge=1)
    """Second depth to measure: as many passages as a query reranker has candidates (the paper: 25 and 32). Null for
    none."""
    top_queries: int | None = Field(None, ge=2)
    """Number of expansions, in a query reranker's order, whose fused rankings are reranked too. Null does not rerank
    them."""

    @model_validator(mode="after")
    def _looks_at_one_passage(self) -> Self:
        check_candidates(self.mining, self.train)
        return self

    @property
    def mining(self) -> MineConfig:
        """Return the config of the groups it is trained on: a question with one passage."""
        return MineConfig(negatives=0)


class ReaderPhase(Part):
    """A reader that writes answers from what systems retrieve (section 3.4.6)."""

    model: ReaderConfig
    """Model of the reader. In the paper it is T5-large."""
    train: TrainConfig | None = None
    """Training, with a loss like those of generators. Null for a reader that is trained already."""
    learn_from: Literal["BM25", "retriever"] = "BM25"
    """Ranking of the training questions that it learns to read. `retriever`: the dense retriever's. Fusion-in-Decoder's
    readers for these sets learn from DPR's passages like that (Izacard and Grave, 2021)."""
    passages: int = Field(10, ge=1)
    """Number of first passages of a ranking that it learns from."""
    visits: int = Field(1, ge=1)
    """Number of times that each question is among the training rows, each time with another sampled answer."""
    depths: Annotated[list[PositiveInt], AfterValidator(distinct)] = Field([10, 100], min_length=1)
    """Numbers of passages that it reads when it is measured (Table 3.5: 100 and 10)."""
    read: ReadConfig = ReadConfig()
    """Generation of answers. `passages` is each of the depths in turn."""

    @model_validator(mode="after")
    def _is_not_judged(self) -> Self:
        if self.train is not None and self.train.validate_on_dev is not None:
            raise ValueError("train: validate_on_dev: a reader has no candidates to be judged on; leave it out")
        return self


class AllExpansionsConfig(FusionConfig):
    """Fusion of all expansions' rankings, without choosing."""

    generators: list[str] | None = Field(None, min_length=1)
    """Generators of these expansions, measured or not. An example is a generator that writes beams next to those that
    sample. Null takes all that are measured."""


class Config(RetrievalConfig):
    """Generators, query rerankers, and the dense retriever that they are fused with."""

    recipe: Literal["ear"]
    generators: dict[str, Generator] = Field(min_length=1)
    """Generators by name, in the order in which their rankings are fused if `order` is null."""
    order: list[str] | None = None
    """Order in which the measured generators' rankings are fused. In the paper it is sentence, answer, title. It is
    useful for a file with a `base`, which keeps the order of the base's generators."""
    generator_seed: int = 1
    """Seed of the generators. It is separate from `seeds`, those of query rerankers and the dense retriever, so that
    all of these choose from the same expansions."""
    relevant_by: Literal["answers", "qrels"] = "answers"
    """Documents that an expansion should retrieve: those that contain an answer, or those that are judged relevant."""
    include_question: bool = False
    """Add the question without an expansion as a candidate. The paper and its code do not."""
    rerankers: Rerankers
    training_queries: int | None = Field(None, ge=1)
    """Number of training queries to learn from, sampled by the seed. Null takes all."""
    training_candidates: int | None = Field(None, ge=2)
    """Number of expansions of each training query to learn from, sampled from all. Null takes all, as in the paper.
    Half of them teach about as much in half the time, so that twice as many queries can be learnt from."""
    predict: PredictConfig = PredictConfig()
    fewer_expansions: Annotated[list[PositiveInt], AfterValidator(distinct)] = []
    """Numbers of first expansions. For each, rerankers also choose among that many only (Table 3.8)."""
    fusion: FusionConfig = FusionConfig()
    """Fusion of the generators' rankings."""
    retriever: RetrieverConfig
    """The dense retriever."""
    negatives: MineConfig = MineConfig(negatives=1)
    """Hard negatives of the dense retriever, from BM25's ranking."""
    screen: ScreenConfig | None = None
    """False-negative control over BM25's ranking. Null leaves out only judged documents and copies of them."""
    train: TrainConfig | None = None
    """Training of the dense retriever. Null takes the start model as it is."""
    dense_fusion: FusionConfig = FusionConfig()
    """Fusion of a ranking with the dense retriever's (last block of Table 3.2)."""
    with_dense: Annotated[list[str], AfterValidator(distinct)] = Field([], exclude_if=lambda of: not of)
    """Further systems whose ranking is fused with the dense retriever's, in addition to BM25 and the query rerankers:
    `first expansion` (GAR + DPR), `all expansions`, `concat`, `RM3`, or one of `evaluate.other_rankings`."""
    hnsw: str | None = None
    """FAISS factory string of an approximate index. The dense retriever's vectors are then searched with it too (Table
    3.11: `HNSW`). Null does not."""
    rm3: RM3Config | None = None
    """BM25 with relevance feedback by RM3, as Lucene has it, as a further system. Null leaves it out."""
    all_expansions: AllExpansionsConfig | None = None
    """Fusion of all expansions' rankings without choosing, as contextual clue sampling does with beams (Liu et al.,
    2022; section 3.4.3). Null leaves it out."""
    to_dense: bool = False
    """Issue the chosen expansions to the dense retriever too (section 3.6.2, Table 3.7)."""
    passages: Passages | None = None
    """Reranking of the passages that the first expansion and the query rerankers' choices retrieve (Table 3.6). Null
    leaves it out."""
    reader: ReaderPhase | None = None
    """Answers to questions from what BM25, the dense retriever, the first expansion and the query rerankers' choices
    retrieve (Table 3.5). Null leaves them out."""
    models_from: str | None = None
    """File of another EAR experiment, relative to where you run or to this config. Its models are applied to this
    collection without training on it (section 3.4.5, Table 3.4). Generators, rerankers, retriever and reader are then
    those of that file."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, generator in self.generators.items():
            teacher = generator.learn_from
            if teacher is not None and teacher not in self.generators:
                raise ValueError(f"generators: {name}: learn_from: {teacher!r}; accepted: {', '.join(self.generators)}")
        measured = [name for name, generator in self.generators.items() if generator.measured]
        if not measured:
            raise ValueError("generators: none is measured; set `measured: true` for at least one")
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
                    f"generators: {source}: number: 1: a reranker learns nothing from one expansion; accepted: 2 or "
                    "more"
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
        """Return the generators whose rankings are fused, in their order."""
        return self.order or [name for name, generator in self.generators.items() if generator.measured]

    def kinds(self) -> list[Kind]:
        """Return the kinds of query rerankers that are configured."""
        return list(self.rerankers.given())

    def reranker_trainings(self) -> list[TrainConfig]:
        """Return the training of each query reranker."""
        return [reranker.train for name in self.measured() for reranker in self.rerankers.of(name).values()]
