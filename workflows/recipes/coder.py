"""CODER with evidence-based label smoothing, and reranking by reciprocal nearest neighbours (paper 003).

A retriever finds the ranking context of each training query; candidates that are like the relevant documents get a
share of the target distribution (Algorithm 1); the query encoder learns that distribution over the whole context.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from components.interpolation import InterpolationConfig
from components.model_configs import DualEncoderConfig
from components.neighbours import NeighboursConfig
from components.train_config import TemperatureConfig, TrainConfig
from workflows.board import Board, Outcome, note_on
from workflows.dag import Step, step
from workflows.parts import Base, Collection, Phase, Refreshed, begin, phase, refresh, seeded, splits_for
from workflows.steps.choose_neighbours import ChooseConfig, chosen
from workflows.steps.encode import encode_queries
from workflows.steps.interpolate import interpolate
from workflows.steps.neighbours import NeighboursRerankConfig, rerank_by_neighbours
from workflows.steps.pictures import PicturesConfig, pictures
from workflows.steps.search import search
from workflows.steps.smooth import ContextConfig, SmoothConfig, contexts, smooth
from workflows.steps.train import train

BY_NEIGHBOURS = "by neighbours"


class Config(Base):
    """A base model, the contexts that it finds, their labels, and a training on them."""

    recipe: Literal["coder"]
    retriever: DualEncoderConfig
    warm: Phase | None = None
    """How the base model is made of the start model, as DPR is; null where the start model is the base model. Its
    ranked negatives are BM25's."""
    context: ContextConfig = ContextConfig()
    """N candidates of a training query (Algorithm 1, line 3)."""
    smooth: SmoothConfig | None = None
    """How labels are smoothed (lines 4 to 8); null for CODER alone, on the labels that are there."""
    documents: Literal["fixed", "learned"] = "fixed"
    """`fixed`: only queries learn, against the base model's documents. `learned`: both do, and at every refresh labels
    are made anew of the vectors there are then (the paper's Limitations); then candidates are encoded in each step, so
    contexts are small."""
    rounds: int = Field(1, ge=1)
    """Refreshes: contexts found and labels smoothed anew, and a training on them."""
    train: TrainConfig | None = None
    """Null to rerank what the base model finds, and train nothing."""
    temperature: TemperatureConfig = TemperatureConfig()
    """T of line 9. With learned documents each loss has its own."""
    rerank: NeighboursRerankConfig | None = None
    """How rankings are reranked by neighbours (section 3.1); null for not at all."""
    choose: ChooseConfig | None = None
    """Let the numbers of a reranking be chosen by what they do for other queries, without any training."""
    interpolate: InterpolationConfig | None = None
    """Mix the base model's ranking with CODER's, as it is and reranked (Table 2)."""
    pictures: PicturesConfig | None = PicturesConfig()
    """Of the first seed's labels, predictions and training, where documents are fixed; null for none."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.train is None and (self.smooth is not None or self.interpolate is not None):
            raise ValueError("smooth and interpolate are about what is trained, and there is no train")
        if self.train is None:
            return self
        if self.context.size > self.k:
            raise ValueError(f"context.size: {self.context.size} candidates, and k: {self.k} documents are retrieved")
        if self.documents == "fixed" and any(term.over != "group" for term in self.train.losses):
            raise ValueError("train.losses: with fixed documents they look over each query's own candidates, the group")
        look = self.train.validate_on_dev
        if self.documents == "learned" and look is not None and look.measure == "loss":
            raise ValueError("train.validate_on_dev.measure: loss needs the one temperature that fixed documents have")
        return self


def build(config: Config) -> Outcome:
    """The graph: one base model and one CODER a seed, and the board of results."""
    begun = begin("start retriever", config.retriever)
    collection = Collection(config, begun)
    board = Board(collection, config)
    hard = config.warm is not None and config.warm.mine.negatives > 0
    test = [config.evaluate.split]
    lexical = collection.bm25([*splits_for(config.warm.train if config.warm else None), *test] if hard else test)
    drawn: list[Step] = []
    for seed in config.seeds:
        board.add("BM25", lexical, seed=seed)
        found = Training(config, collection, board, seed, drawn).run(begun, lexical if hard else None)
    return Outcome(
        results=board.results(compared(config)), data=collection.data, found=found, ranker=None,
        rankings=board.rankings, split=config.evaluate.split, note=note_on(config.retriever.model),
        pictures=tuple(drawn[:1]),
    )  # fmt: skip


def base_name(config: Config) -> str:
    """What the base model is called."""
    return "warm retriever" if config.warm is not None else "start model"


def compared(config: Config) -> list[tuple[str, str]]:
    """Each system with what it was made to be better than, the one that the run is for first."""
    base = base_name(config)
    pairs = [("CODER", base)] if config.train is not None else []
    for system in [base, "CODER"] if config.train is not None else [base]:
        pairs += [(f"{system} {BY_NEIGHBOURS}", system)] if config.rerank is not None else []
        pairs += [(f"{system} {BY_NEIGHBOURS}, chosen", system)] if config.choose is not None else []
    if config.interpolate is not None:
        pairs.append((f"{base} + CODER", "CODER"))
        pairs += [(f"{base} + CODER {BY_NEIGHBOURS}", f"CODER {BY_NEIGHBOURS}")] if config.rerank is not None else []
    return [*pairs, (base, "BM25")]


@dataclass(frozen=True)
class Training:
    """One seed's."""

    config: Config
    collection: Collection
    board: Board
    seed: int
    drawn: list[Step]
    """Pictures of the seeds so far."""

    def run(self, start: Step, lexical: Step | None) -> Refreshed:
        """Algorithm 1 from a start model: what the last retriever finds."""
        config, base = self.config, base_name(self.config)
        found = self.base(start, lexical)
        first = self.measured(base, found)
        if config.train is not None:
            for i in range(1, config.rounds + 1):
                before, rows, labels = found, *self.groups(i, found)
                retriever = self.trained(i, found, labels)
                found = self.refreshed(i, found, retriever)
            if config.pictures is not None and config.documents == "fixed":
                self.draw(before, rows, labels, found)
            last = self.measured("CODER", found)
            for kind, ranking in last.items():
                if config.interpolate is not None:
                    system = f"{base} + CODER {kind}".strip()
                    mixed = step(
                        self.label(system), interpolate, data=self.collection.data, first=first[""], second=ranking,
                        split=config.evaluate.split, k=config.k, config=config.interpolate,
                    )  # fmt: skip
                    self.board.add(system, mixed, seed=self.seed)
        return found

    def base(self, start: Step, lexical: Step | None) -> Refreshed:
        """Line 1 to 3: the base model's vectors, and what it finds for every query."""
        config, label = self.config, base_name(self.config)
        if config.warm is not None:
            label = self.label(label)
            start = phase(
                label, self.collection, "retriever", ranking=lexical, start=start, seed=[self.seed, "warm retriever"],
                config=config.warm,
            )  # fmt: skip
        return refresh(label, self.collection, start, config, splits=self.splits())

    def groups(self, i: int, found: Refreshed) -> tuple[Step, Step]:
        """Lines 3 to 8: the queries' contexts, and the same with the labels that are trained on."""
        config = self.config
        rows = step(
            self.label(f"contexts {i}"), contexts, data=self.collection.data,
            tokens=self.collection.tokens["retriever"], ranking=found.ranking, split="train", config=config.context,
        )  # fmt: skip
        if config.smooth is None:
            return rows, rows
        return rows, step(
            self.label(f"labels {i}"), smooth, data=self.collection.data, vectors=found.vectors, groups=rows,
            config=config.smooth,
        )  # fmt: skip

    def trained(self, i: int, found: Refreshed, groups: Step) -> Step:
        """Line 9: fit the distribution, watched on contexts of other queries with the labels that are there."""
        config, dev = self.config, None
        assert config.train is not None
        if (look := config.train.validate_on_dev) is not None:
            dev = step(
                self.label(f"{look.split} contexts {i}"), contexts, data=self.collection.data,
                tokens=self.collection.tokens["retriever"], ranking=found.ranking, split=look.split,
                config=ContextConfig(size=look.negatives + 1, queries=look.queries),
            )  # fmt: skip
        fixed = {"objective": "coder", "vectors": found.vectors, "temperature": config.temperature}
        return step(
            self.label(f"CODER {i}"), train, rows=groups, dev=dev, data=self.collection.data,
            tokens=self.collection.tokens["retriever"], start=found.retriever, seed=[self.seed, "coder", i],
            config=config.train, **(fixed if config.documents == "fixed" else {"objective": "retriever"}),
        )  # fmt: skip

    def refreshed(self, i: int, found: Refreshed, retriever: Step) -> Refreshed:
        """What the retriever finds now; documents whose vectors are fixed are not encoded again."""
        config, label = self.config, self.label(f"CODER {i}")
        splits = self.splits() if i < config.rounds else self.splits(trained=True)
        encoded = self.splits() if config.pictures is not None else splits  # pictures look at training queries too
        if config.documents == "learned":
            return refresh(label, self.collection, retriever, config, splits=splits)
        data, tokens = self.collection.data, self.collection.tokens["retriever"]
        vectors = step(
            f"{label} vectors", encode_queries, data=data, tokens=tokens, retriever=retriever,
            documents=found.vectors, splits=encoded, config=config.encode,
        )  # fmt: skip
        ranking = step(
            f"{label} ranking", search, data=data, vectors=vectors, index=found.index, splits=splits, k=config.k,
            config=config.search,
        )  # fmt: skip
        return Refreshed(retriever, vectors, found.index, ranking)

    def draw(self, before: Refreshed, rows: Step, labels: Step, found: Refreshed) -> None:
        """Figures 2 and 11 to 13, of the last round."""
        config = self.config
        assert config.pictures is not None
        similarity = config.smooth.similarity if config.smooth is not None else NeighboursConfig(mix=1.0)
        self.drawn.append(
            step(
                self.label("pictures"), pictures, data=self.collection.data, vectors=before.vectors, groups=rows,
                labels=labels if labels is not rows else None, model=found.retriever, trained=found.vectors,
                similarity=similarity, config=config.pictures,
            )
        )  # fmt: skip

    def measured(self, system: str, found: Refreshed) -> dict[str, Step]:
        """Measure what a retriever finds, as it is and reranked by neighbours; the rankings."""
        config, data, split = self.config, self.collection.data, self.config.evaluate.split
        rankings = {"": found.ranking}
        if config.rerank is not None:
            rankings[BY_NEIGHBOURS] = step(
                self.label(f"{system} {BY_NEIGHBOURS}"), rerank_by_neighbours, data=data, vectors=found.vectors,
                ranking=found.ranking, splits=[split], config=config.rerank,
            )  # fmt: skip
        if config.choose is not None:
            rankings[f"{BY_NEIGHBOURS}, chosen"] = step(
                self.label(f"{system} {BY_NEIGHBOURS}, chosen"), chosen, data=data, vectors=found.vectors,
                ranking=found.ranking, split=split, config=config.choose,
            )  # fmt: skip
        for kind, ranking in rankings.items():
            self.board.add(f"{system} {kind}".strip(), ranking, seed=self.seed, entropy=not kind)
        return rankings

    def splits(self, *, trained: bool = False) -> list[str]:
        """The splits that a refresh is for: to train on and to watch until that is over, to choose by, to measure."""
        config = self.config
        drawn = splits_for(config.train) if config.train is not None and not trained else []
        by = [config.choose.split] if config.choose is not None and config.choose.split is not None else []
        return list(dict.fromkeys([*drawn, *by, config.evaluate.split]))

    def label(self, text: str) -> str:
        """A step's label, with the seed where there are several."""
        return seeded(text, self.seed, self.config)
