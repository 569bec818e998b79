"""AR2, adversarial retriever-ranker training (Zhang et al., 2022).

The retriever learns to retrieve documents that the ranker takes for relevant, and the ranker learns to tell these from
the relevant ones. `Game.play` is the paper's Algorithm 1, and "line" in this file is a line of it.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sparring.components.config import Config as Part
from sparring.components.config import Invalid, distinct
from sparring.components.evaluation.gate import GateConfig
from sparring.components.evaluation.measures import sees_order
from sparring.components.models.configs import CrossEncoderConfig
from sparring.components.retrieval.kind import RetrieverConfig
from sparring.components.retrieval.prior import PriorConfig
from sparring.components.training.terms import LossTerm
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import FastConfig, TrainingPhase, check_encoder, seeded
from sparring.workflows.stages.learning import in_round
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import fused_with_bm25, refresh
from sparring.workflows.stages.sizes import Sizes, SizesKey
from sparring.workflows.stages.starting import StartedConfig, started
from sparring.workflows.stages.teacher import Teacher, check_teacher, contender_named, teacher_by
from sparring.workflows.stages.training import ScreenInputs, mine_groups, mined_k, mining, phase, train_model
from sparring.workflows.stages.untrained import INTERPOLATED, add_untrained, start_retrieval
from sparring.workflows.steps.score import RerankConfig, ScoreConfig
from sparring.workflows.store.dag import Step, in_phase
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.lexical import Lexical
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import EVALUATION, WARM_UP, round_name
from sparring.workflows.systems.reranked import Reranked, Reranking
from sparring.workflows.systems.rows import Outcome, note_on
from sparring.workflows.systems.system import Rankings, System

Control = Literal["in-batch", "ance", "distillation"]
CONTROLS = "training of controls"
"""Part of a run that controls are trained in."""


class RetrieverSide(Part):
    """The retriever's side of the game."""

    model: RetrieverConfig
    warm: TrainingPhase
    """Warm-up before the game (Algorithm 1, line 2). Its ranked negatives come from BM25."""
    game: TrainingPhase
    """Training in each round (lines 7 to 10). The ranker scores the groups beforehand, for losses that read a
    teacher."""


class RankerSide(Part):
    """The ranker's side of the game."""

    model: CrossEncoderConfig
    encoder: Literal["model", "warm retriever"] = "model"
    """Model that the ranker begins from. `model`: the pre-trained model, as in the paper. `warm retriever`: the encoder
    of the warm retriever, which has already learnt from the collection. Both must then be made from the same model."""
    warm: TrainingPhase
    """Warm-up before the game (Algorithm 1, line 5)."""
    game: TrainingPhase
    """Training in each round (lines 12 to 15)."""
    prior: PriorConfig | None = None
    """Scores that are added to the ranker's, both when it reranks and when it teaches. Null adds none, as in the
    paper."""


class Controls(Part):
    """Controls: the warm retriever trained on as many groups as in the game, without a ranker or with a frozen one."""

    include: Annotated[list[Control], AfterValidator(distinct)] = []
    """Controls to train. `ance` is the game without the ranker's scores (Zhang et al., 2022, Figure 4). Its negatives
    come from its own ranking, refreshed as often as in the game, but its losses do not read a teacher. `in-batch`
    continues the warm-up: its loss, and negatives from the warm retriever's ranking in all rounds. These two learn in
    each round, even if a closed gate stops the game's retriever. `distillation` is the game with a frozen ranker: the
    warm ranker teaches in all rounds, behind the same gate."""
    in_batch: list[LossTerm] = []
    """Losses of `in-batch`. They should be those of the retriever's warm-up."""
    ance: list[LossTerm] = []
    """Losses of `ance`. They should be the game's, with cross entropy over the group instead of those that read the
    ranker's scores."""

    @model_validator(mode="after")
    def _trained(self) -> Self:
        for name in self.include:
            if name != "distillation" and not self.losses(name):
                raise ValueError(f"{name} is included, and {name.replace('-', '_')} names no losses")
        return self

    def losses(self, name: Control) -> list[LossTerm]:
        """Return the losses of a control without a ranker."""
        return self.in_batch if name == "in-batch" else self.ance


class Config(StartedConfig, SizesKey):
    """A retriever and a ranker, their warm-up, and the rounds of the game."""

    recipe: Literal["ar2"]
    rounds: int = Field(ge=1)
    """Number of rounds of the game. Each round trains both models once."""
    order: Literal["released", "paper"] = "released"
    """Order inside a round. `released`, as in the public code: ranker, retriever, refresh. `paper`, as in Algorithm 1:
    retriever, refresh, ranker. Both are the same cycle with another beginning. With `released` the first retriever
    learns from a ranker that was trained once more, and the last ranker has not seen the last retriever's ranking."""
    retriever: RetrieverSide
    ranker: RankerSide
    gate: GateConfig | Literal[False] = GateConfig()
    """Gate of each round. The retriever learns in a round only if the ranker orders the queries of `evaluate.select`
    better than the retriever does. A worse ranker has nothing to teach: the retriever stays as it is, and only the
    ranker learns. False opens the gate in every round, as in the paper."""
    score: ScoreConfig = ScoreConfig()
    rerank: RerankConfig = RerankConfig()
    refresh_every: int = Field(1, ge=1)
    """Number of rounds from one refresh of the ranking to the next (line 11). In the paper and its code it is 1. The
    last round always refreshes."""
    other_rerankings: list[Literal["rounds", "grid", "fused"]] = ["fused"]
    """Further rankings to rerank and measure. The warm retriever's ranking by the warm ranker, and the last retriever's
    by the last ranker, are always measured. `rounds`: every round's ranking by its own ranker (Figure 3). `grid`: the
    warm and the last ranking, each by the warm and the last ranker (Table 3). `fused`: the warm and the last ranking,
    each fused with BM25's and reranked by its own ranker. The difference between these two shows what the game adds to
    a deployed system."""
    controls: Controls = Controls()
    fast: FastConfig | None = None
    """A smaller retriever for low latency, as a further candidate. It learns in the same phases, but its first ranker
    is the last one. It is measured as `fast warm retriever`, `fast retriever 1` and so on. Null trains none."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        decided = {"gate": self.gate, "ranker.prior": self.ranker.prior}
        for key in (key for key, value in decided.items() if value):
            if self.evaluate.select is None or self.evaluate.select_by is None:
                raise ValueError(
                    f"{key}: it needs evaluate.select, the split to decide on, and a measure by judgements; accepted: "
                    f"both, or `{key}: {'false' if key == 'gate' else 'null'}`"
                )
            depth, measure = min(self.rerank.depth, self.k), self.evaluate.select_by
            if not sees_order(measure, depth):
                raise ValueError(
                    f"{key}: it is decided by {measure}, the first of evaluate.measures, and that is the same in every "
                    f"order of the {depth} documents that are reranked; accepted: one such as RR@10 or nDCG@10 first"
                )
        if self.ranker.encoder != "model":
            check_encoder(self.ranker.encoder, self.ranker.model, self.retriever.model)
        phases = (self.retriever.game, self.ranker.warm, self.ranker.game)
        check_teacher(self.teacher, self.contenders, reads=any(phase.train.reads_teacher for phase in phases))
        if "distillation" in self.controls.include:
            self._check_distillation()
        layers = self.retriever.model.layers
        if self.fast is not None and layers is not None:
            count = layers if isinstance(layers, int) else len(layers)
            if self.fast.layers >= count:
                raise Invalid(
                    f"fast.layers: the retriever has {count} layers. Use fewer, or `fast: null`.", "out-of-range"
                )
        return self

    def _check_distillation(self) -> None:
        """Raise Invalid if the ranker that teaches in the game is frozen too."""
        reason = ""
        if self.teacher is not None:
            reason = "the game's `teacher` is frozen too"
        elif self.order == "paper" and self.rounds == 1:
            reason = "with `order: paper`, the warm ranker teaches in round 1 of the game too"
        if reason:
            raise Invalid(
                f"controls.include: distillation is the same as the game here: {reason}. Leave it out.", "duplicate"
            )

    def refreshes_after(self, round: int) -> bool:
        """Check whether a round refreshes the ranking."""
        return round == self.rounds or round % self.refresh_every == 0

    def reranks_after(self, round: int) -> bool:
        """Check whether a round's ranking is reranked and measured."""
        return round == self.rounds or ("rounds" in self.other_rerankings and self.refreshes_after(round))

    @property
    def mined_k(self) -> int:
        """Number of documents of a training query's ranking. Priors look up scores in it, so they need all `k`."""
        phases = (self.retriever.warm, self.retriever.game, self.ranker.warm, self.ranker.game)
        return self.k if self.ranker.prior is not None else mined_k(self.k, *phases)

    def in_round(self, i: int, phase: TrainingPhase) -> TrainingPhase:
        """Return the training of one round."""
        return phase.model_copy(update={"train": in_round(phase.train, i, self.rounds)})


def build(config: Config) -> Outcome:
    """Build the graph: one game per seed on one collection, and the results."""
    collection = Collection(config)
    retriever = collection.initial_model("start retriever", config.retriever.model)
    results = Results(collection, config)
    split = config.evaluate.split
    untrained, sizes = start_retrieval(collection, retriever, config), Sizes(results)
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever.model, seed=seed)
        game = Game(config, collection, results, seed)
        last_retrieval, last_ranker = game.play(started(results, collection, untrained, config, seed).model)
        sizes.add(f"retriever {config.rounds}", last_retrieval, config.sizes, seed=seed)
        if config.fast is not None:
            student = config.retriever.model.model_copy(update={"layers": config.fast.layers})
            game.play_fast(collection.initial_model("fast start retriever", student), last_ranker)
    return Outcome(
        results=results.gather(comparisons(config)),
        data=collection.data,
        rows=results.rows,
        retrieval=last_retrieval,
        ranker=last_ranker.step,
        split=split,
        note=note_on(config.retriever.model.model),
        pictures=sizes.table(),
    )


def comparisons(config: Config) -> list[tuple[str, str]]:
    """List systems with their baselines. The first comparison is the purpose of the run.

    Each system of the last round is compared with the same system before the game, so that a reader sees how much of
    the gain precedes the game.
    """
    last = f"retriever {config.rounds}"
    pairs = [(last, "warm retriever"), (f"ranker over {last}", "warm ranker over warm retriever")]
    if "fused" in config.other_rerankings:
        pairs += [(f"ranker over BM25 + {last}", "warm ranker over BM25 + warm retriever")]
    pairs += [(last, f"control: {name}") for name in config.controls.include]
    if config.fast is not None:
        pairs += [(f"fast {last}", "fast warm retriever"), (f"fast {last}", last)]
    pairs += [("warm ranker over warm retriever", "warm retriever"), (f"ranker over {last}", last)]
    if "grid" in config.other_rerankings:
        pairs += [
            ("last ranker over warm retriever", "warm ranker over warm retriever"),
            (f"ranker over {last}", f"warm ranker over {last}"),
        ]
    return [*pairs, ("warm retriever", "BM25"), ("warm retriever", "start model")]


@dataclass(frozen=True)
class Game:
    """The game of one seed."""

    config: Config
    collection: Collection
    results: Results
    seed: int
    prefix: str = ""
    """Beginning of the names of its systems and steps."""
    teachers: dict[str, Reranking] = field(default_factory=dict)
    """The contender that teaches, over each retriever's rankings. An address is not asked again for their pairs."""
    judged: list[Step] = field(default_factory=list)
    """Steps with groups that teachers have scored. An address is not asked again for their pairs."""

    def play(self, retriever: Model) -> tuple[Dense, Model]:
        """Play Algorithm 1 from a start model (line 1). Return the last retriever with its ranking, and the last
        ranker."""
        config = self.config
        with in_phase(WARM_UP):
            retriever = self.warm_up_retriever(retriever)  # line 2
            retrieval = warm_retrieval = self.refresh("warm retriever", retriever, round=0)  # lines 3 and 4
            ranker = warm_ranker = self.warm_up_ranker(retrieval)  # line 5
            self.rerank("warm ranker over warm retriever", ranker, retrieval, round=0)
            self.fuse_with_bm25("warm retriever", retrieval, "warm ranker", ranker)

        for i in range(1, config.rounds + 1):  # line 6
            with in_phase(round_name(i)):
                retriever, ranker, retrieval = self.play_round(i, retriever, ranker, retrieval)  # lines 7 to 15
                if config.reranks_after(i):
                    self.rerank(f"ranker over retriever {i}", ranker, retrieval, round=i)

        with in_phase(EVALUATION):
            self.fuse_with_bm25(f"retriever {config.rounds}", retrieval, "ranker", ranker)
            if "grid" in config.other_rerankings:
                self.rerank(f"warm ranker over retriever {config.rounds}", warm_ranker, retrieval)
                self.rerank("last ranker over warm retriever", ranker, warm_retrieval)
        for name in config.controls.include:
            self.control(name, warm_retrieval, warm_ranker)
        return retrieval, ranker

    def play_round(
        self, i: int, retriever: Model, ranker: Model, retrieval: Dense, *, trains_ranker: bool = True
    ) -> tuple[Model, Model, Dense]:
        """Train both models, or the retriever alone, and refresh the ranking."""
        config = self.config
        if trains_ranker and config.order == "released":
            ranker = self.train_ranker(i, ranker, retrieval)  # lines 12 to 15
        retriever = self.train_retriever(i, retriever, ranker, retrieval)  # lines 7 to 10
        if config.refreshes_after(i):
            retrieval = self.refresh(f"retriever {i}", retriever, round=i)  # line 11
        if trains_ranker and config.order == "paper":
            ranker = self.train_ranker(i, ranker, retrieval)  # lines 12 to 15
        return retriever, ranker, retrieval

    @in_phase("fast retriever")
    def play_fast(self, retriever: Model, ranker: Model) -> None:
        """Play the rounds with a smaller retriever, against the last ranker of the game. Only the retriever is
        measured. So if a contender teaches, the ranker does not learn."""
        config = self.config.model_copy(update={"other_rerankings": []})
        game = replace(self, config=config, prefix="fast ")
        retriever = game.warm_up_retriever(retriever)
        retrieval = game.refresh("warm retriever", retriever)
        learns = config.teacher is None
        for i in range(1, config.rounds + 1):
            retriever, ranker, retrieval = game.play_round(i, retriever, ranker, retrieval, trains_ranker=learns)
        game.fuse_with_bm25(f"retriever {config.rounds}", retrieval, "ranker", ranker)

    def warm_up_retriever(self, start: Model) -> Model:
        """Train as DPR does (line 2), with negatives from BM25's ranking if the config asks for some."""
        warm = self.config.retriever.warm
        return phase(
            self.label("warm retriever"),
            self.collection,
            start,
            rankings=self.mining(self.collection.lexical) if warm.mine.negatives > 0 else None,
            seed=[self.seed, "warm retriever"],
            config=warm,
            part="warm-up",
        )

    def warm_up_ranker(self, retrieval: Dense) -> Model:
        """Train on negatives that the warm retriever retrieved (line 5)."""
        config, encoder = self.config.ranker, None if self.config.ranker.encoder == "model" else retrieval.model
        label = "start ranker" if encoder is None else self.label("start ranker")
        start = self.collection.initial_model(label, config.model, objective="ranker", encoder=encoder)
        return phase(
            self.label("warm ranker"),
            self.collection,
            start,
            rankings=self.mining(retrieval),
            seed=[self.seed, "warm ranker"],
            config=self.config.ranker.warm,
            inputs=ScreenInputs(vectors=retrieval.vectors),
            teacher=self.contender(start, retrieval),
            part="warm-up",
        )

    def train_retriever(
        self, i: int, retriever: Model, ranker: Model, retrieval: Dense, part: str | None = None
    ) -> Model:
        """Train the retriever to retrieve what the teacher takes to be relevant (lines 7 to 10).

        The teacher is the ranker, unless the config names a contender. It is frozen during this training, so it scores
        all groups beforehand.
        """
        config = self.config.in_round(i, self.config.retriever.game)
        seed = [self.seed, "retriever", i]
        teacher = self.teacher(f"teacher {i}", ranker, retrieval)
        gate = teacher.gate(self.config.gate, self.config.evaluate.select_by) if self.config.gate else None
        groups = mine_groups(
            self.label(f"retriever {i} groups"),
            self.collection,
            rankings=self.mining(retrieval),
            seed=seed,
            config=config,
            inputs=ScreenInputs(ranker, retrieval.vectors),
            gate=gate,
        )
        judged = self.teacher_by(teacher)(self.label(f"judged {i}"), groups)
        return train_model(
            self.label(f"retriever {i}"),
            self.collection,
            retriever,
            rows=judged,
            rankings=self.mining(retrieval),
            seed=seed,
            config=config,
            part=part,
        )

    def train_ranker(self, i: int, ranker: Model, retrieval: Dense) -> Model:
        """Train the ranker to tell the relevant documents from the retrieved hard negatives (lines 12 to 15)."""
        return phase(
            self.label(f"ranker {i}"),
            self.collection,
            ranker,
            rankings=self.mining(retrieval),
            seed=[self.seed, "ranker", i],
            config=self.config.in_round(i, self.config.ranker.game),
            inputs=ScreenInputs(ranker, retrieval.vectors),
            teacher=self.contender(ranker, retrieval),
        )

    def teacher(self, label: str, ranker: Model, retrieval: Dense) -> Reranking:
        """Return the ranker over what a retriever retrieved, or in its place the contender that the config names."""
        reranked = self.reranking(label, ranker, retrieval)
        if self.config.teacher is None:
            return reranked
        if retrieval.identity not in self.teachers:
            contender = contender_named(self.config.teacher, self.results, self.seed)
            shared = {key: getattr(reranked, key) for key in ("over", "priors", "fit_on")}
            label, before = f"{contender.label} over {retrieval.label}", (contender, *self.teachers.values())
            self.teachers[retrieval.identity] = replace(contender, label=label, before=before, **shared)
        return self.teachers[retrieval.identity]

    def contender(self, ranker: Model, retrieval: Dense) -> Teacher | None:
        """Return the contender that teaches in place of a ranker. None if the config names none."""
        if self.config.teacher is None:
            return None
        return self.teacher_by(self.teacher("teacher", ranker, retrieval))

    def teacher_by(self, reranking: Reranking) -> Teacher:
        """Return a teacher that scores as a reranking does."""
        return teacher_by(reranking, self.config.score, self.judged)

    def refresh(self, system: str, retriever: Model, *, round: int | None = None) -> Dense:
        """Rank the collection again for both models, and measure the ranking (line 11; before the game lines 3 and
        4)."""
        name = f"{self.prefix}{system}"
        return self.results.refresh(name, retriever, seed=self.seed, round=round, entropy=True)

    def rerank(
        self,
        system: str,
        ranker: Model,
        retrieval: Dense,
        *,
        round: int | None = None,
        over: System | None = None,
    ) -> None:
        """Rerank what a retriever retrieved, or the rankings of another system that contains the retriever, and measure
        it."""
        reranked = self.reranking(system, ranker, retrieval, over)
        self.results.add(system, reranked, seed=self.seed, round=round, queries=self.config.rerank.queries)

    def reranking(self, label: str, ranker: Model, retrieval: Dense, over: System | None = None) -> Reranked:
        """Return a ranker over what a retriever retrieved, or over another system that contains the retriever."""
        config, prior = self.config, self.config.ranker.prior
        scores: dict[str, System] = {"retriever": retrieval, "bm25": self.collection.lexical}
        priors = {} if prior is None else {str(name): scores[name] for name in prior.scores}
        return Reranked(
            self.label(label),
            self.collection.data,
            over or retrieval,
            config.rerank,
            priors,
            config.evaluate.select,
            ranker=ranker,
        )

    def fuse_with_bm25(self, system: str, retrieval: Dense, by: str, ranker: Model) -> None:
        """Interpolate BM25's ranking with a retriever's, and measure it. If `other_rerankings` has `fused`, rerank it
        and measure that too."""
        name = f"BM25 + {self.prefix}{system}, interpolated"
        label = seeded(name, self.seed, self.config)
        fused = fused_with_bm25(label, self.collection, retrieval, self.config, INTERPOLATED)
        self.results.add(name, fused, seed=self.seed)
        if "fused" in self.config.other_rerankings:
            self.rerank(f"{by} over BM25 + {system}", ranker, retrieval, over=fused)

    @in_phase("controls")
    def control(self, name: Control, warm_retrieval: Dense, warm_ranker: Model) -> None:
        """Train the warm retriever on as many groups with as many negatives as in the game, without a ranker or with a
        frozen one."""
        config, retriever, retrieval = self.config, warm_retrieval.model, warm_retrieval
        for i in range(1, config.rounds + 1):
            label, last = f"control {name} {i}", i == config.rounds
            if name == "distillation":
                game = replace(self, prefix=f"control {name}: ")
                retriever = game.train_retriever(i, retriever, warm_ranker, retrieval, CONTROLS)
            else:
                retriever = self.train_control(name, label, i, retriever, retrieval)
            if last or (name != "in-batch" and config.refreshes_after(i)):
                retrieval = refresh(self.label(label), self.collection, retriever, config)
                on_curve = i if name != "in-batch" and config.rounds > 1 else None
                system = f"control: {name}" if last else f"control: {name} {i}"
                self.results.add(system, retrieval, seed=self.seed, round=on_curve, entropy=True)

    def train_control(self, name: Control, label: str, i: int, retriever: Model, retrieval: Dense) -> Model:
        """Train a control without a ranker for one round."""
        config, game = self.config, self.config.retriever.game
        train = game.train.model_copy(update={"losses": config.controls.losses(name)})
        screen = None if game.screen is None else game.screen.model_copy(update={"vote": None})  # a vote needs a ranker
        training = game.model_copy(update={"screen": screen, "train": train})
        return phase(
            self.label(label),
            self.collection,
            retriever,
            rankings=self.mining(retrieval),
            seed=[self.seed, "retriever", i],
            config=config.in_round(i, training),
            inputs=ScreenInputs(vectors=retrieval.vectors),
            part=CONTROLS,
        )

    def mining(self, system: Dense | Lexical) -> Rankings:
        """Rank a system's documents for the negatives of all trainings."""
        return mining(system, self.config.mined_k)

    def label(self, text: str) -> str:
        """Return a step's label, with the seed if there are several."""
        return seeded(f"{self.prefix}{text}", self.seed, self.config)
