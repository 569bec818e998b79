"""AR2: a retriever that finds what fools the ranker, and a ranker that learns to tell (paper 004, Algorithm 1)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config as Part
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.train_config import TrainConfig
from workflows.dag import Step, step
from workflows.parts import (
    Base,
    Board,
    Collection,
    Outcome,
    Phase,
    Refreshed,
    begin,
    drawn,
    note_on,
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
    """The warm retriever trained as long on the same groups, without a ranker."""

    play: list[Control] = []
    """`in-batch`: cross entropy over the whole batch, negatives from the warm ranking throughout. `ance`: cross
    entropy over the group, negatives from its own ranking, refreshed as often (paper 004, Figure 4)."""
    in_batch: TrainConfig | None = None
    ance: TrainConfig | None = None

    @model_validator(mode="after")
    def _trained(self) -> Self:
        if len(set(self.play)) < len(self.play):
            raise ValueError("play: a control stands twice")
        for name in self.play:
            if getattr(self, name.replace("-", "_")) is None:
                raise ValueError(f"{name} is played, and {name.replace('-', '_')} says not how it is trained")
        return self


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
    rank: Literal["last", "rounds", "grid"] = "last"
    """What is reranked and measured beside the warm players: the last ranking by the last ranker; every round's by
    its own; or the grid of the paper's Table 3, warm and last ranker over warm and last ranking."""
    controls: Controls = Controls()


def build(config: Config) -> Outcome:
    """The graph: one game a seed on one collection, and the board of results."""
    start_retriever = begin("start retriever", config.retriever.model)
    start_ranker = begin("start ranker", config.ranker.model)
    collection = Collection(config, start_retriever, start_ranker)
    board = Board(collection, config)
    test = [config.evaluate.split]

    warm = config.retriever.warm
    hard = warm.mine.negatives > 0
    lexical = collection.bm25([*splits_for(warm.train), *test] if hard else test)
    untrained = refresh("start", collection, start_retriever, config, splits=test)
    for seed in config.seeds:
        board.add("BM25", lexical, seed=seed)
        board.add("start model", untrained.ranking, seed=seed)
        found, ranker = game(config, collection, board, start_retriever, start_ranker, lexical if hard else None, seed)

    last = f"retriever {config.rounds}"
    comparisons = [(last, "warm retriever")]  # the first is the one that the run was made for
    comparisons += [(last, f"control: {name}") for name in config.controls.play]
    comparisons += [("warm ranker over warm retriever", "warm retriever"), (f"ranker over {last}", last)]
    if config.rank == "grid":
        comparisons += [
            ("last ranker over warm retriever", "warm ranker over warm retriever"),
            (f"ranker over {last}", f"warm ranker over {last}"),
        ]
    comparisons += [("warm retriever", "BM25"), ("warm retriever", "start model")]
    return Outcome(
        results=board.results(comparisons), data=collection.data, found=found, ranker=ranker,
        rankings=board.rankings, split=config.evaluate.split, note=note_on(config.retriever.model.model),
        examples=(last, "warm retriever"),
    )  # fmt: skip


def game(
    config: Config, collection: Collection, board: Board, retriever: Step, ranker: Step, lexical: Step | None, seed: int
) -> tuple[Refreshed, Step]:
    """Warm both players, play the rounds, and play the controls from the same warm retriever.

    `lexical` is the ranking that the warm retriever's hard negatives come from, where it has some, as DPR's do.
    """
    drawing = (config.ranker.warm.train, config.ranker.game.train, config.retriever.game.train)
    splits = [*splits_for(*drawing), config.evaluate.split]

    def label(text: str) -> str:
        return seeded(text, seed, config)

    retriever = phase(
        label("warm retriever"), collection, "retriever", ranking=lexical, start=retriever,
        seed=[seed, "warm retriever"], config=config.retriever.warm,
    )  # fmt: skip
    found = warm = refresh(label("warm retriever"), collection, retriever, config, splits=splits)
    board.add("warm retriever", found.ranking, seed=seed, round=0, entropy=True)
    ranker = phase(
        label("warm ranker"), collection, "ranker", ranking=found.ranking, start=ranker, seed=[seed, "warm ranker"],
        config=config.ranker.warm,
    )  # fmt: skip
    warm_ranker = ranker

    def ranked(system: str, ranker: Step, on: Refreshed, round: int | None) -> None:
        over = reranked(label(system), collection, on.ranking, ranker, config, config.rerank)
        board.add(system, over, seed=seed, round=round, queries=config.rerank.queries)

    ranked("warm ranker over warm retriever", ranker, warm, 0)

    for i in range(1, config.rounds + 1):
        for player in ("ranker", "retriever") if config.order == "released" else ("retriever", "ranker"):
            if player == "ranker":
                ranker = phase(
                    label(f"ranker {i}"), collection, "ranker", ranking=found.ranking, start=ranker,
                    seed=[seed, "ranker", i], config=in_round(i, config.ranker.game),
                )  # fmt: skip
            else:
                groups = drawn(
                    label(f"retriever {i} groups"), collection, ranking=found.ranking, seed=[seed, "retriever", i],
                    config=config.retriever.game,
                )  # fmt: skip
                judged = step(
                    label(f"judged {i}"), judge, data=collection.data, tokens=collection.tokens["ranker"],
                    groups=groups, ranker=ranker, config=config.judge,
                )  # fmt: skip
                retriever = trained(
                    label(f"retriever {i}"), collection, "retriever", rows=judged, ranking=found.ranking,
                    start=retriever, seed=[seed, "retriever", i], config=in_round(i, config.retriever.game).train,
                )  # fmt: skip
                if refreshed(i, config):
                    found = refresh(label(f"retriever {i}"), collection, retriever, config, splits=splits)
                    board.add(f"retriever {i}", found.ranking, seed=seed, round=i, entropy=True)
        if i == config.rounds or (config.rank == "rounds" and refreshed(i, config)):
            ranked(f"ranker over retriever {i}", ranker, found, i)
    if config.rank == "grid":
        ranked(f"warm ranker over retriever {config.rounds}", warm_ranker, found, None)
        ranked("last ranker over warm retriever", ranker, warm, None)

    for name in config.controls.play:
        control(name, config, collection, board, warm, seed)
    return found, ranker


def control(name: Control, config: Config, collection: Collection, board: Board, warm: Refreshed, seed: int) -> None:
    """The warm retriever trained as long, on as many groups with as many negatives, without a ranker."""
    found, retriever = warm, warm.retriever
    how = config.controls.in_batch if name == "in-batch" else config.controls.ance
    assert how is not None
    as_long = Phase(mine=config.retriever.game.mine, train=how)
    for i in range(1, config.rounds + 1):
        label = seeded(f"control {name} {i}", seed, config)
        source = warm if name == "in-batch" else found
        groups = drawn(
            f"{label} groups", collection, ranking=source.ranking, seed=[seed, "retriever", i],
            config=as_long,
        )  # fmt: skip
        retriever = trained(
            label, collection, "retriever", rows=groups, ranking=source.ranking, start=retriever,
            seed=[seed, "retriever", i],
            config=in_round(i, as_long).train,
        )  # fmt: skip
        if i == config.rounds or (name == "ance" and refreshed(i, config)):
            splits = [*splits_for(how), config.evaluate.split]
            found = refresh(label, collection, retriever, config, splits=splits)
            system = f"control: {name}" + ("" if i == config.rounds else f" {i}")
            on_curve = i if name == "ance" and config.rounds > 1 else None
            board.add(system, found.ranking, seed=seed, round=on_curve, entropy=True)


def refreshed(i: int, config: Config) -> bool:
    """Whether a round ends with a fresh ranking."""
    return i == config.rounds or i % config.refresh_every == 0


def in_round(i: int, config: Phase) -> Phase:
    """A round's training: from the warm-up into round 1 goes nothing but weights, whatever rounds carry to rounds."""
    return config if i > 1 else Phase(mine=config.mine, train=config.train.model_copy(update={"carry": "weights"}))
