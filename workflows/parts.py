"""Sub-graphs that recipes share: a collection, BM25, a phase of training, a refresh."""

from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from components.config import Config, UserError
from components.embedding_space import AnalysisConfig
from components.measures import at_level
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.screening import ScreenConfig
from components.sources.base import AnySource
from components.train_config import TrainConfig
from workflows.dag import Step, step
from workflows.steps.answers import AnswerConfig, answering
from workflows.steps.encode import EncodeConfig, encode
from workflows.steps.evaluate import EntropyConfig
from workflows.steps.ingest import ingest
from workflows.steps.lucene import BM25Config, LuceneIndexConfig, lucene_index, lucene_search
from workflows.steps.mine import MineConfig, mine
from workflows.steps.score import RerankConfig, rerank
from workflows.steps.screen import screen
from workflows.steps.search import SearchConfig, faiss_index, search
from workflows.steps.start import start
from workflows.steps.tokenize import TokenizeConfig, tokenize
from workflows.steps.train import train


class LexicalConfig(Config):
    """BM25: the index and how it is asked."""

    index: LuceneIndexConfig = LuceneIndexConfig()
    search: BM25Config = BM25Config()


class EvaluateConfig(Config):
    """What is measured, on which queries."""

    split: str = "test"
    """The split whose queries are never trained on."""
    relevant_from: int = Field(1, ge=1)
    """From which relevance on a document is right, for measures that ask, as all but nDCG do: 2 is the strict reading
    of TREC DL's grades, 1 the lenient one. A measure may name its own: `RR(rel=2)@10`."""
    measures: list[str] = Field(["RR@10", "Success@5", "R@100"], validate_default=True)
    """In `ir_measures`' names."""
    also: dict[str, AnySource] = {}
    """The same rankings under other judgements of the same queries, by the name that their table has: collections of
    which nothing but the qrels is looked at, such as TripClick's with its other labels."""
    entropy: EntropyConfig = EntropyConfig()
    """Of the retriever's distribution over its first documents."""

    @field_validator("measures")
    @classmethod
    def _known(cls, names: list[str], found: ValidationInfo) -> list[str]:
        level = found.data.get("relevant_from", 1)
        try:
            return list(dict.fromkeys(at_level(name, level) for name in names))
        except UserError as error:
            raise ValueError(str(error)) from None


class Base(Config):
    """What every retrieval recipe has."""

    recipe: str
    data: AnySource
    seeds: list[int] = Field([1], min_length=1)
    """One whole training each; tables give the mean over them, and comparisons are made on means over them."""
    k: int = Field(100, ge=1)
    """Documents retrieved for a query."""
    tokens: TokenizeConfig = TokenizeConfig()
    answers: AnswerConfig = AnswerConfig()
    bm25: LexicalConfig = LexicalConfig()
    encode: EncodeConfig = EncodeConfig()
    search: SearchConfig = SearchConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    analyse: AnalysisConfig | None = None
    """What the space of each measured retriever looks like: numbers and pictures in the report; null for none."""

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed stands twice")
        return seeds


class Phase(Config):
    """Groups, and training on them."""

    screen: ScreenConfig | None = None
    """False-negative control over the ranking that negatives are drawn from; null for none beyond judged documents and
    copies."""
    mine: MineConfig
    train: TrainConfig


class Collection:
    """A collection ready for models: its tables, its tokens, and BM25 over it."""

    def __init__(self, config: Base, retriever: Step, ranker: Step | None = None, reader: Step | None = None) -> None:
        for model in (retriever, ranker, reader):
            _kept(model, config.tokens)
        self.data = step("data", ingest, source=config.data)
        self.tokens = {"retriever": step("tokens", tokenize, data=self.data, model=retriever, config=config.tokens)}
        """What a retriever, a ranker and a reader read: the first two the same where both begin from the same model."""
        if ranker is not None:
            self.tokens["ranker"] = self.tokens["retriever"]
            if _reading(ranker) != _reading(retriever):
                self.tokens["ranker"] = step(
                    "ranker tokens", tokenize, data=self.data, model=ranker, config=config.tokens
                )
        if reader is not None:
            self.tokens["reader"] = step("reader tokens", tokenize, data=self.data, model=reader, config=config.tokens)
        self._config = config

    def bm25(self, splits: list[str]) -> Step:
        """BM25's ranking of the queries of some splits."""
        config = self._config
        index = step("bm25 index", lucene_index, data=self.data, config=config.bm25.index)
        return step(
            "bm25 ranking", lucene_search, data=self.data, index=index, splits=splits, k=config.k,
            config=config.bm25.search,
        )  # fmt: skip

    def answering(self, ranking: Step, splits: list[str]) -> Step:
        """A ranking of some splits that says which documents bear an answer."""
        return step(
            f"{ranking.label} answers ({', '.join(splits)})", answering, data=self.data, ranking=ranking,
            splits=splits, config=self._config.answers,
        )  # fmt: skip


def _reading(start: Step) -> tuple[Any, ...]:
    """What the tokens that a model reads depend on: where its tokenizer comes from, and what stands before a text."""
    config = start.inputs["config"]
    prompts = (config.query_prompt, config.document_prompt) if isinstance(config, DualEncoderConfig) else ("", "")
    return config.model, config.revision, *prompts


def _kept(start: Step | None, tokens: TokenizeConfig) -> None:
    """UserError where a model is to read more of a text than is kept."""
    config = {} if start is None else start.inputs["config"].model_dump()
    for key in ("query_tokens", "document_tokens", "pair_tokens", "passage_tokens"):
        if config.get(key, 0) > tokens.max_tokens:
            raise UserError(
                f"{key}: {config[key]}: no more than {tokens.max_tokens} are kept of a text (tokens.max_tokens)"
            )


def begin(label: str, config: DualEncoderConfig | CrossEncoderConfig) -> Step:
    """A model before any training."""
    return step(label, start, config=config)


@dataclass(frozen=True)
class Hand:
    """What is at hand when candidates are screened: the ranker of the moment, and the vectors that made the ranking."""

    ranker: Step | None = None
    vectors: Step | None = None


NOTHING = Hand()


def phase(
    label: str, collection: Collection, objective: str, *, ranking: Step | None, start: Step, seed: list[Any],
    config: Phase, hand: Hand = NOTHING,
) -> Step:  # fmt: skip
    """Draw as many groups as the training takes, and train on them."""
    groups = drawn(f"{label} groups", collection, ranking=ranking, seed=seed, config=config, hand=hand)
    return trained(
        label, collection, objective, rows=groups, ranking=ranking, start=start, seed=seed, config=config.train
    )


def drawn(
    label: str, collection: Collection, *, ranking: Step | None, seed: list[Any], config: Phase, hand: Hand = NOTHING
) -> Step:
    """One group for each visit of a training query."""
    if config.mine.positives == "answering" or (config.screen is not None and config.screen.answering):
        if ranking is None:
            raise UserError("mine: positives and negatives by answer are found in a ranking, and there is none here")
        ranking = collection.answering(ranking, ["train"])
    if config.screen is not None:
        ranking = screened(label, collection, ranking, config.screen, hand)
    return step(
        label, mine, data=collection.data, tokens=collection.tokens["retriever"], ranking=ranking, split="train",
        groups=config.train.steps * config.train.batch, seed=seed, config=config.mine,
    )  # fmt: skip


def screened(label: str, collection: Collection, ranking: Step | None, config: ScreenConfig, hand: Hand) -> Step:
    """A ranking that says which of its candidates may become negatives."""
    if ranking is None:
        raise UserError("screen: candidates are screened in a ranking, and there is none here")
    votes = None
    if config.vote is not None:
        if hand.ranker is None:
            raise UserError("screen.vote: there is no ranker yet that could be asked")
        votes = step(
            f"{label} votes", rerank, data=collection.data, tokens=collection.tokens["ranker"], ranking=ranking,
            split="train", ranker=hand.ranker, config=RerankConfig(depth=config.vote.depth),
        )  # fmt: skip
    if config.reciprocal is not None and hand.vectors is None:
        raise UserError("screen.reciprocal: this ranking was not made by vectors")
    return step(
        f"{label} screened", screen, data=collection.data, tokens=collection.tokens["retriever"], ranking=ranking,
        split="train", votes=votes, vectors=hand.vectors if config.reciprocal is not None else None, config=config,
    )  # fmt: skip


def trained(
    label: str, collection: Collection, objective: str, *, rows: Step, ranking: Step | None, start: Step,
    seed: list[Any], config: TrainConfig,
) -> Step:  # fmt: skip
    """A model trained on groups; where that is asked for, judged meanwhile on others drawn from the same ranking."""
    dev = None
    if (look := config.validate_on_dev) is not None:
        if look.measure == "loss":
            raise UserError(f"{label}: validate_on_dev: measure: loss is for CODER's fixed documents; accepted: "
                            "RR, accuracy")  # fmt: skip
        negatives = {"negatives": look.negatives} if ranking is not None else {"negatives": 0, "random": look.negatives}
        dev = step(
            f"{label} {look.split} groups", mine, data=collection.data, tokens=collection.tokens["retriever"],
            ranking=ranking, split=look.split, groups=look.queries, seed=[*seed, look.split],
            config=MineConfig(**negatives),
        )  # fmt: skip
    return step(
        label, train, objective=objective, rows=rows, dev=dev, data=collection.data,
        tokens=collection.tokens[objective], start=start, seed=seed, config=config,
    )  # fmt: skip


def splits_for(*trainings: TrainConfig | None) -> list[str]:
    """The splits whose rankings some trainings draw groups from."""
    looks = [config.validate_on_dev for config in trainings if config is not None]
    return list(dict.fromkeys(["train", *(look.split for look in looks if look is not None)]))


@dataclass(frozen=True)
class Refreshed:
    """What a retriever finds: the vectors it made, an index over them where one is asked for, and its ranking."""

    retriever: Step
    vectors: Step
    index: Step | None
    ranking: Step


def refresh(label: str, collection: Collection, retriever: Step, config: Base, *, splits: list[str]) -> Refreshed:
    """Encode the collection anew and search it for the queries of some splits (paper 004, section 3.3)."""
    vectors = step(
        f"{label} vectors", encode, data=collection.data, tokens=collection.tokens["retriever"],
        retriever=retriever, splits=splits, config=config.encode,
    )  # fmt: skip
    index = None
    if config.search.index is not None:
        index = step(f"{label} index", faiss_index, vectors=vectors, factory=config.search.index)
    ranking = step(
        f"{label} ranking", search, data=collection.data, vectors=vectors, index=index, splits=splits, k=config.k,
        config=config.search,
    )  # fmt: skip
    return Refreshed(retriever, vectors, index, ranking)


def reranked(
    label: str, collection: Collection, ranking: Step, ranker: Step, config: Base, depth: RerankConfig
) -> Step:
    """The evaluated queries' ranking in a ranker's order."""
    return step(
        label, rerank, data=collection.data, tokens=collection.tokens["ranker"], ranking=ranking,
        split=config.evaluate.split, ranker=ranker, config=depth,
    )  # fmt: skip


def seeded(label: str, seed: int, config: Base) -> str:
    """A label that says the seed where there are several."""
    return f"{label} (seed {seed})" if len(config.seeds) > 1 else label
