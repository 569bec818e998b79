"""EAR: expand a query in many ways, rerank the expansions, retrieve with the best (paper 002, chapter 3)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.fusion import FusionConfig
from components.generator_configs import GenerateConfig, GeneratorConfig
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.relevance_model import RelevanceConfig
from components.screening import ScreenConfig
from components.targets import TargetConfig
from components.train_config import TrainConfig
from workflows.board import Board, Outcome, note_on
from workflows.dag import Step, step
from workflows.parts import Base, Collection, Phase, begin, phase, refresh, reranked, seeded, splits_for
from workflows.steps.answers import answering
from workflows.steps.choose import answer_ranks, choose, rank_groups
from workflows.steps.expand import FileConfig, concatenated, expand_by_model, expand_by_relevance, expand_from_file
from workflows.steps.fuse import fuse
from workflows.steps.lucene import lucene_search
from workflows.steps.mine import MineConfig
from workflows.steps.query_rerank import PredictConfig, candidates, predict
from workflows.steps.score import RerankConfig
from workflows.steps.start import start
from workflows.steps.targets import targets
from workflows.steps.tokenize import tokenize
from workflows.steps.train import train

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


class Config(Base):
    """Generators, query rerankers, and the dense retriever that they are fused with."""

    recipe: Literal["ear"]
    generators: dict[str, Generator] = Field(min_length=1)
    """By name, in the order in which their rankings are fused: in the paper sentence, answer, title."""
    draw: int = 1
    """The seed of the generators. It is not among `seeds`: those are of query rerankers and the dense retriever, which
    all choose from the same expansions."""
    good: Literal["answers", "qrels"] = "answers"
    """What makes a ranking good: a document that bears an answer, or one that is relevant."""
    max_rank: int = Field(101, ge=1)
    """The rank of an expansion that finds no such document (the paper's MAX_RANK)."""
    rerankers: Rerankers
    training_queries: int | None = Field(None, ge=1)
    """Only so many training queries are learnt from; null for all."""
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
    passages: Passages | None = None
    """Rerank the passages that the first expansion and the query rerankers' choices find (Table 3.6); null for not."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, generator in self.generators.items():
            of = generator.learn_from
            if of is not None and of not in self.generators:
                raise ValueError(f"generators: {name}: learn_from: {of!r}; accepted: {', '.join(self.generators)}")
        if not self.measured():
            raise ValueError("generators: of none the rankings are measured")
        return self

    def measured(self) -> list[str]:
        """The generators whose rankings are fused, in their order."""
        return [name for name, generator in self.generators.items() if generator.measured]

    def kinds(self) -> list[tuple[Kind, Reranker]]:
        """The query rerankers that there are."""
        both: list[tuple[Kind, Reranker | None]] = [("ri", self.rerankers.ri), ("rd", self.rerankers.rd)]
        return [(kind, reranker) for kind, reranker in both if reranker is not None]


def build(config: Config) -> Outcome:
    """The chain for every generator, and what comes of fusing them, beside BM25, the oracle and a dense retriever."""
    begun = begin("start retriever", config.retriever)
    over = None if config.passages is None else begin("start passage reranker", config.passages.model)
    chain = Chain(config, Collection(config, begun, over))
    board, test = Board(chain.collection, config), [config.evaluate.split]
    dense = "start model" if config.train is None else "retriever"

    issued = {name: chain.issue(name, test) for name in config.measured()}
    plain = {
        "first expansion": [chain.choice(name, one, None, "first") for name, one in issued.items()],
        "concat": [chain.concat(name, one) for name, one in issued.items()],
        "best query": [chain.choice(name, one, one.ranks, "best") for name, one in issued.items()],
    }
    found = refresh("start", chain.collection, begun, config, splits=test)
    for seed in config.seeds:
        board.add("BM25", chain.lexical, seed=seed)
        for system, rankings in plain.items():
            board.add(system, chain.fused(system, rankings), seed=seed)
        if config.train is not None:
            hard = chain.lexical if config.negatives.negatives > 0 else None
            retriever = phase(
                seeded("retriever", seed, config), chain.collection, "retriever", ranking=hard, start=begun,
                seed=[seed, "retriever"], config=Phase(screen=config.screen, mine=config.negatives, train=config.train),
            )  # fmt: skip
            found = refresh(seeded("retriever", seed, config), chain.collection, retriever, config, splits=test)
        board.add(dense, found.ranking, seed=seed, entropy=True)
        board.add("BM25 + dense", chain.with_dense("BM25", chain.lexical, found.ranking, seed), seed=seed)
        expanded = {"first expansion": chain.fused("first expansion", plain["first expansion"])}
        for kind, reranker in config.kinds():
            predicted = {name: chain.predicted(name, one, kind, reranker, seed) for name, one in issued.items()}
            for number in [None, *config.fewer]:
                system = f"EAR-{kind.upper()}" + (f" N={number}" if number else "")
                label = seeded(system, seed, config)
                choices = [chain.choice(n, one, predicted[n], label, number) for n, one in issued.items()]
                ranking = chain.fused(label, choices)
                board.add(system, ranking, seed=seed)
                if number is None:
                    expanded[system] = ranking
                    both = chain.with_dense(system, ranking, found.ranking, seed)
                    board.add(f"{system} + dense", both, seed=seed)
        if over is not None:
            chain.passages(board, expanded, over, seed)

    return Outcome(
        results=board.results(comparisons(config, dense)), data=chain.collection.data, found=found, ranker=None,
        rankings=board.rankings, split=config.evaluate.split, note=note_on(config.retriever.model),
        examples=(f"EAR-{config.kinds()[-1][0].upper()}" if config.kinds() else "first expansion", "BM25"),
    )  # fmt: skip


def comparisons(config: Config, dense: str) -> list[tuple[str, str]]:
    """What the paper sets side by side; first what the run was made for."""
    ears = [f"EAR-{kind.upper()}" for kind, _ in reversed(config.kinds())]
    found = [(ear, other) for ear in ears for other in ("first expansion", "BM25")]
    found += pairwise(ears)
    found += [("first expansion", "BM25"), ("concat", "first expansion")]
    found += [("best query", ear) for ear in ears] + [(ear, dense) for ear in ears]
    found += [(f"{ear} + dense", other) for ear in ears for other in (dense, "BM25 + dense")]
    if config.passages is not None:
        few = f"first expansion + passages k={config.passages.as_many}"
        for ear in ears:
            found += [(ear, few)] if config.passages.as_many else []
            found += [(f"{ear} + passages", other) for other in ("first expansion + passages", ear)]
    return found


@dataclass(frozen=True)
class Issued:
    """Expansions, what each finds, and how good that is."""

    name: str
    """The generator's, and the splits."""
    expanded: Step
    found: Step
    ranks: Step


class Chain:
    """The moves from a query to the ranking of its best expansion."""

    def __init__(self, config: Config, collection: Collection) -> None:
        self.config, self.collection = config, collection
        looks = [reranker.train for _, reranker in config.kinds()]
        self.learning = splits_for(*looks)
        """The splits that rerankers learn from and are validated on."""
        self.lexical = collection.bm25(list(dict.fromkeys([*splits_for(*looks, config.train), config.evaluate.split])))

    # Section 3.2.1: expansions.

    def expand(self, name: str, splits: list[str]) -> Step:
        """A generator's expansions of the queries of some splits."""
        generator, data = self.config.generators[name], self.collection.data
        label, seed = f"{name} expansions ({', '.join(splits)})", [self.config.draw, name]
        if generator.file is not None:
            return step(label, expand_from_file, data=data, splits=splits, config=generator.file)
        if generator.relevance is not None:
            return step(
                label, expand_by_relevance, data=data, ranking=self.lexical, splits=splits, seed=seed,
                config=generator.relevance,
            )  # fmt: skip
        writer = generator.writer
        assert writer is not None
        folds = writer.learn.folds if writer.learn is not None and splits == self.learning else None
        models = [self.written_by(name, writer, fold) for fold in range(folds)] if folds else []
        return step(
            label, expand_by_model, data=data, models=models or [self.written_by(name, writer, None)], splits=splits,
            seed=seed, config=writer.generate,
        )  # fmt: skip

    def written_by(self, name: str, writer: Writer, fold: int | None) -> Step:
        """The language model that writes, trained without a part of the queries where a fold is named."""
        begun = step(f"{name} start generator", start, config=writer.model)
        learn = writer.learn
        if learn is None:
            return begun
        whose = name if fold is None else f"{name} fold {fold + 1}"
        by_answer = learn.targets.kind != "answer" and learn.targets.documents == "answering"
        rows = step(
            f"{whose} targets", targets, data=self.collection.data, splits=["train"],
            ranking=self.collection.answering(self.lexical, ["train"]) if by_answer else None,
            leave_out=None if fold is None else [fold, learn.folds], mode=self.config.answers.mode,
            config=learn.targets,
        )  # fmt: skip
        tokens = step(f"{whose} target tokens", tokenize, data=rows, model=begun, config=self.config.tokens)
        return step(
            f"{whose} generator", train, objective="generator", rows=rows, dev=None, data=rows, tokens=tokens,
            start=begun, seed=[self.config.draw, "generator", name, fold or 0], config=learn.train,
        )  # fmt: skip

    # Section 3.3.1: each expansion is issued to BM25; its minimum answer rank.

    def retrieve(self, label: str, expanded: Step, splits: list[str]) -> Step:
        """What BM25 finds for expanded queries."""
        config = self.config
        return step(
            label, lucene_search, data=expanded, index=self.lexical.inputs["index"], splits=splits, k=config.k,
            config=config.bm25.search,
        )  # fmt: skip

    def issue(self, name: str, splits: list[str]) -> Issued:
        """A generator's expansions of some splits, issued to BM25."""
        expanded = self.expand(name, splits)
        of = f"{name} ({', '.join(splits)})"
        found = judged = self.retrieve(f"{of} found", expanded, splits)
        by_answer = self.config.good == "answers"
        if by_answer:
            judged = step(
                f"{of} answers", answering, data=expanded, ranking=found, splits=splits, config=self.config.answers
            )
        ranks = step(f"{of} ranks", answer_ranks, expanded=expanded, ranking=judged, by_answer=by_answer)
        return Issued(of, expanded, found, ranks)

    def concat(self, name: str, issued: Issued) -> Step:
        """All expansions of a query as one (Table 3.1)."""
        whole = step(f"{name} concat", concatenated, data=self.collection.data, expanded=issued.expanded)
        found = self.retrieve(f"{name} concat found", whole, [self.config.evaluate.split])
        return self.choice(name, Issued(name, whole, found, found), None, "concat")

    # Sections 3.3.1 and 3.3.2: query rerankers.

    def reading(self, issued: Issued, kind: Kind, begun: Step) -> dict[str, Any]:
        """What a reranker reads of expansions, and its tokens."""
        view = step(
            f"{issued.name} {kind} candidates", candidates, data=self.collection.data,
            expanded=issued.expanded, ranking=issued.found if kind == "rd" else None,
        )  # fmt: skip
        tokens = step(f"{issued.name} {kind} tokens", tokenize, data=view, model=begun, config=self.config.tokens)
        return {"data": view, "tokens": tokens}

    def reranker(self, name: str, kind: Kind, reranker: Reranker, seed: int) -> Step:
        """A query reranker that learnt from a generator's expansions of the training queries."""
        config = self.config
        learnt = self.issue(config.generators[name].learn_from or name, self.learning)
        begun = begin(f"start {kind} reranker", reranker.model)

        def groups(split: str, most: int | None) -> Step:
            return step(
                f"{name} groups ({split})", rank_groups, data=self.collection.data, ranks=learnt.ranks, split=split,
                max_rank=config.max_rank, queries=most,
            )  # fmt: skip

        look = reranker.train.validate_on_dev
        dev = groups(look.split, look.queries) if look is not None else None
        return step(
            seeded(f"{name} {kind} reranker", seed, config), train, objective="query_reranker", dev=dev,
            rows=groups("train", config.training_queries), start=begun, seed=[seed, "query reranker", name, kind],
            config=reranker.train, **self.reading(learnt, kind, begun),
        )  # fmt: skip

    def predicted(self, name: str, issued: Issued, kind: Kind, reranker: Reranker, seed: int) -> Step:
        """The rank that a reranker predicts for each expansion of the measured queries."""
        reading = self.reading(issued, kind, begin(f"start {kind} reranker", reranker.model))
        return step(
            seeded(f"{name} {kind} predicted", seed, self.config), predict, expanded=issued.expanded,
            candidates=reading["data"], tokens=reading["tokens"],
            reranker=self.reranker(name, kind, reranker, seed), config=self.config.predict,
        )  # fmt: skip

    # Appendix B.3: the chosen expansion's ranking, and the fusion of the generators'.

    def choice(self, name: str, issued: Issued, scores: Step | None, label: str, number: int | None = None) -> Step:
        """Each query's ranking is that of its expansion with the lowest score."""
        return step(
            f"{name} {label} ranking", choose, data=self.collection.data, expanded=issued.expanded,
            ranking=issued.found, scores=scores, otherwise=self.lexical, split=self.config.evaluate.split,
            number=number,
        )  # fmt: skip

    def fused(self, label: str, rankings: list[Step], config: FusionConfig | None = None) -> Step:
        """Several rankings made one."""
        if len(rankings) == 1:
            return rankings[0]
        return step(
            f"{label} fused", fuse, data=self.collection.data, rankings=rankings, split=self.config.evaluate.split,
            config=config or self.config.fusion,
        )  # fmt: skip

    def with_dense(self, system: str, ranking: Step, dense: Step, seed: int) -> Step:
        """A ranking with the dense retriever's."""
        label = seeded(f"{system} + dense", seed, self.config)
        return self.fused(label, [ranking, dense], self.config.dense_fusion)

    # Section 3.5: passage reranking.

    def passages(self, board: Board, rankings: dict[str, Step], begun: Step, seed: int) -> None:
        """Rerank the passages of some systems' rankings, and measure them."""
        config = self.config.passages
        assert config is not None
        ranker = phase(
            seeded("passage reranker", seed, self.config), self.collection, "ranker", ranking=self.lexical,
            start=begun, seed=[seed, "passage reranker"], config=config,
        )  # fmt: skip
        for system, ranking in rankings.items():
            for depth in [config.rerank.depth, *([config.as_many] if config.as_many else [])]:
                name = f"{system} + passages" + ("" if depth == config.rerank.depth else f" k={depth}")
                how = config.rerank.model_copy(update={"depth": depth})
                over = reranked(
                    seeded(name, seed, self.config), self.collection, ranking, ranker, self.config, how
                )  # fmt: skip
                board.add(name, over, seed=seed, queries=how.queries)
