"""AR2: a retriever that finds what fools the ranker, and a ranker that learns to tell (paper 004, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.objectives.terms import Term
from workflows.board import Board, Outcome, note_on
from workflows.dag import Step, step
from workflows.parts import (
    Base,
    Collection,
    Hand,
    Phase,
    Refreshed,
    begin,
    drawn,
    phase,
    refresh,
    reranked,
    seeded,
    splits_for,
    trained,
)  # fmt: skip
from workflows.steps.score import RerankConfig, ScoreConfig, judge

Control = Literal["in-batch", "ance"]


class Retriever(Part):
    """The retriever's side of the game."""

    model: DualEncoderConfig
    warm: Phase
    """Before the game (Algorithm 1, line 2); its ranked negatives are BM25's."""
    game: Phase
    """In each round: `judged` groups under distillation and the adversarial term (lines 7 to 10)."""


class Ranker(Part):
    """The ranker's side of the game."""

    model: CrossEncoderConfig
    warm: Phase
    """Before the game (line 5)."""
    game: Phase
    """In each round (lines 12 to 15)."""

    @model_validator(mode="after")
    def _reads_pairs(self) -> Self:
        if any(term.over == "batch" for part in (self.warm, self.game) for term in part.train.losses):
            raise ValueError("a ranker's losses look over the group; `over: batch` would need every pair of the batch")
        return self


class Controls(Part):
    """The warm retriever trained as it is in the game, on as many groups, but for the loss: without a ranker."""

    play: list[Control] = []
    """`in-batch`: negatives from the warm ranking throughout. `ance`: negatives from its own ranking, refreshed as
    often as in the game (paper 004, Figure 4)."""
    in_batch: list[Term] = []
    """Its losses; usually cross entropy over the batch."""
    ance: list[Term] = []
    """Its losses; usually cross entropy over the group."""

    @model_validator(mode="after")
    def _trained(self) -> Self:
        if len(set(self.play)) < len(self.play):
            raise ValueError("play: a control stands twice")
        for name in self.play:
            if not self.losses(name):
                raise ValueError(f"{name} is played, and {name.replace('-', '_')} names no losses")
        return self

    def losses(self, name: Control) -> list[Term]:
        """What a control learns from."""
        return self.in_batch if name == "in-batch" else self.ance


class Config(Base):
    """The game: two players, their warm-up, and rounds."""

    recipe: Literal["ar2"]
    rounds: int = Field(ge=1)
    """Rounds of the game; each ends with a fresh ranking of the collection."""
    order: Literal["released", "paper"] = "released"
    """Inside a round: ranker, retriever, refresh as the released code has it; or retriever, refresh, ranker as
    Algorithm 1 has it. The same cycle, begun elsewhere."""
    retriever: Retriever
    ranker: Ranker
    judge: ScoreConfig = ScoreConfig()
    rerank: RerankConfig = RerankConfig()
    refresh_every: int = Field(1, ge=1)
    """Rounds from one refresh of the ranking to the next (line 11; the paper and its code: 1). The last round ends
    with one whatever this says."""
    rank: list[Literal["rounds", "grid"]] = []
    """What is reranked and measured beside the last ranking by the last ranker: every round's by its own (Figure 3);
    the grid of the paper's Table 3, warm and last ranker over warm and last ranking."""
    controls: Controls = Controls()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        trained = {"retriever": self.retriever.game.train, "ranker": self.ranker.game.train}
        for player, train in trained.items():
            steps = self.rounds * train.steps
            if train.carry == "all" and train.schedule_steps is not None and train.schedule_steps < steps:
                raise ValueError(
                    f"{player}.game.train.schedule_steps: {train.schedule_steps} is less than the {steps} of all "
                    f"{self.rounds} rounds, the last of which would learn nothing; leave it out for {steps}"
                )
        return self


def build(config: Config) -> Outcome:
    """The graph: one game a seed on one collection, and the board of results."""
    retriever, ranker = begin("start retriever", config.retriever.model), begin("start ranker", config.ranker.model)
    collection = Collection(config, retriever, ranker)
    board = Board(collection, config)
    test = [config.evaluate.split]

    warm = config.retriever.warm
    hard = warm.mine.negatives > 0  # from BM25, as DPR's are
    lexical = collection.bm25([*splits_for(warm.train), *test] if hard else test)
    untrained = refresh("start", collection, retriever, config, splits=test)
    for seed in config.seeds:
        board.add("BM25", lexical, seed=seed)
        board.add("start model", untrained.ranking, seed=seed)
        found, last_ranker = game(Play(config, collection, board, seed), retriever, ranker, lexical if hard else None)

    last = f"retriever {config.rounds}"
    comparisons = [(last, "warm retriever")]  # the first is the one that the run was made for
    comparisons += [(last, f"control: {name}") for name in config.controls.play]
    comparisons += [("warm ranker over warm retriever", "warm retriever"), (f"ranker over {last}", last)]
    if "grid" in config.rank:
        comparisons += [
            ("last ranker over warm retriever", "warm ranker over warm retriever"),
            (f"ranker over {last}", f"warm ranker over {last}"),
        ]
    comparisons += [("warm retriever", "BM25"), ("warm retriever", "start model")]
    return Outcome(
        results=board.results(comparisons), data=collection.data, found=found, ranker=last_ranker,
        rankings=board.rankings, split=config.evaluate.split, note=note_on(config.retriever.model.model),
        examples=(last, "warm retriever"),
    )  # fmt: skip


def game(play: "Play", retriever: Step, ranker: Step, lexical: Step | None) -> tuple[Refreshed, Step]:
    """Algorithm 1 from two start models: what the last retriever finds, and the last ranker."""
    config, rounds = play.config, play.config.rounds
    retriever = play.warm_retriever(retriever, lexical)
    found = warm = play.refresh("warm retriever", retriever, round=0)
    ranker = warm_ranker = play.ranker(0, found, ranker)
    play.rank("warm ranker over warm retriever", ranker, found, round=0)

    for i in range(1, rounds + 1):
        for player in ("ranker", "retriever") if config.order == "released" else ("retriever", "ranker"):
            if player == "ranker":
                ranker = play.ranker(i, found, ranker)
            else:
                retriever = play.retriever(i, found, retriever, ranker)
                if refreshed(i, config):
                    found = play.refresh(f"retriever {i}", retriever, round=i)
        if i == rounds or ("rounds" in config.rank and refreshed(i, config)):
            play.rank(f"ranker over retriever {i}", ranker, found, round=i)

    if "grid" in config.rank:
        play.rank(f"warm ranker over retriever {rounds}", warm_ranker, found)
        play.rank("last ranker over warm retriever", ranker, warm)
    for name in config.controls.play:
        play.control(name, warm)
    return found, ranker


@dataclass(frozen=True)
class Play:
    """The moves of one seed's game."""

    config: Config
    collection: Collection
    board: Board
    seed: int

    def label(self, text: str) -> str:
        """A step's label, with the seed where there are several."""
        return seeded(text, self.seed, self.config)

    def refresh(self, label: str, retriever: Step, *, round: int) -> Refreshed:
        """Rank the collection anew for both players (line 11), and measure the ranking."""
        config = self.config
        drawing = (config.ranker.warm.train, config.ranker.game.train, config.retriever.game.train)
        splits = [*splits_for(*drawing), config.evaluate.split]
        found = refresh(self.label(label), self.collection, retriever, config, splits=splits)
        self.board.add(label, found.ranking, seed=self.seed, round=round, entropy=True)
        return found

    def rank(self, system: str, ranker: Step, found: Refreshed, *, round: int | None = None) -> None:
        """Rerank what a retriever found, and measure it."""
        depth = self.config.rerank
        over = reranked(self.label(system), self.collection, found.ranking, ranker, self.config, depth)
        self.board.add(system, over, seed=self.seed, round=round, queries=depth.queries)

    def warm_retriever(self, start: Step, lexical: Step | None) -> Step:
        """Lines 2 and 3: as DPR is trained, with BM25's negatives where some are asked for."""
        return phase(
            self.label("warm retriever"), self.collection, "retriever", ranking=lexical, start=start,
            seed=[self.seed, "warm retriever"], config=self.config.retriever.warm,
        )  # fmt: skip

    def ranker(self, i: int, found: Refreshed, start: Step) -> Step:
        """Lines 5 (round 0, the warm-up) and 12 to 15: tell the relevant documents from what the retriever finds."""
        config = in_round(i, self.config.ranker.game, self.config.rounds) if i else self.config.ranker.warm
        return phase(
            self.label(f"ranker {i}" if i else "warm ranker"), self.collection, "ranker", ranking=found.ranking,
            start=start, seed=[self.seed, "ranker", i] if i else [self.seed, "warm ranker"], config=config,
            hand=Hand(start if i else None, found.vectors),
        )  # fmt: skip

    def retriever(self, i: int, found: Refreshed, start: Step, ranker: Step) -> Step:
        """Lines 7 to 10: find what the ranker, frozen here, takes to be relevant."""
        config, seed = in_round(i, self.config.retriever.game, self.config.rounds), [self.seed, "retriever", i]
        groups = drawn(
            self.label(f"retriever {i} groups"), self.collection, ranking=found.ranking, seed=seed, config=config,
            hand=Hand(ranker, found.vectors),
        )  # fmt: skip
        judged = step(
            self.label(f"judged {i}"), judge, data=self.collection.data, tokens=self.collection.tokens["ranker"],
            groups=groups, ranker=ranker, config=self.config.judge,
        )  # fmt: skip
        return trained(
            self.label(f"retriever {i}"), self.collection, "retriever", rows=judged, ranking=found.ranking,
            start=start, seed=seed, config=config.train,
        )  # fmt: skip

    def control(self, name: Control, warm: Refreshed) -> None:
        """The warm retriever trained as long, on as many groups with as many negatives, without a ranker."""
        config, retriever, found = self.config, warm.retriever, warm
        how = config.retriever.game.train.model_copy(update={"losses": config.controls.losses(name)})
        screen = config.retriever.game.screen
        if screen is not None:
            screen = screen.model_copy(update={"vote": None})  # without a ranker
        for i in range(1, config.rounds + 1):
            retriever = phase(
                self.label(f"control {name} {i}"), self.collection, "retriever", ranking=found.ranking,
                start=retriever, seed=[self.seed, "retriever", i],
                config=in_round(i, Phase(screen=screen, mine=config.retriever.game.mine, train=how), config.rounds),
                hand=Hand(vectors=found.vectors),
            )  # fmt: skip
            last = i == config.rounds
            if last or (name == "ance" and refreshed(i, config)):
                splits = [*splits_for(how), config.evaluate.split]
                found = refresh(self.label(f"control {name} {i}"), self.collection, retriever, config, splits=splits)
                on_curve = i if name == "ance" and config.rounds > 1 else None
                system = f"control: {name}" if last else f"control: {name} {i}"
                self.board.add(system, found.ranking, seed=self.seed, round=on_curve, entropy=True)


def refreshed(i: int, config: Config) -> bool:
    """Whether a round ends with a fresh ranking."""
    return i == config.rounds or i % config.refresh_every == 0


def in_round(i: int, config: Phase, rounds: int) -> Phase:
    """A round's training: from the warm-up into round 1 goes nothing but weights, whatever rounds carry to rounds.

    Rounds that carry all share one schedule, of all rounds' steps where the config names none.
    """
    train = config.train
    if train.carry == "all":
        train = train.model_copy(update={"schedule_steps": train.schedule_steps or rounds * train.steps})
    if i == 1:
        train = train.model_copy(update={"carry": "weights"})
    return config.model_copy(update={"train": train})
