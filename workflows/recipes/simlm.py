"""SimLM: pre-training on the collection's documents, and a pipeline of four trainings on its queries (Wang et al.,
2023).

`Pipeline.run` is the paper's Figure 2.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.training.config import HardestConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import TrainingPhase, check_encoder, seeded
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.starting import StartedConfig, started
from sparring.workflows.stages.teacher import Teacher, check_teacher, contender_named, teacher_by
from sparring.workflows.stages.training import ScreenInputs, mine_groups, mined_k, mining, phase, train_model
from sparring.workflows.stages.untrained import add_untrained, start_retrieval
from sparring.workflows.steps.score import RerankConfig, ScoreConfig
from sparring.workflows.store.dag import Step, in_phase
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.lexical import Lexical
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.rows import Outcome, note_on, system_names
from sparring.workflows.systems.system import Rankings


class RankerPhase(TrainingPhase):
    """The ranker, and its training on negatives from retriever 2's ranking (Eq. 4)."""

    model: CrossEncoderConfig
    """Any pre-trained model. SimLM's pre-training is for retrievers, and the paper's ranker is ELECTRA."""
    encoder: Literal["model", "pre-trained"] = "model"
    """Model that the ranker begins from. `model`: the model as it is. `pre-trained`: the retrievers' start (Table 5);
    `model` must then be made from the retriever's model."""
    hardest: HardestConfig | None = None
    """Learn only from the hardest of a group's candidates, as the public code does. Null learns from all, as the paper
    says."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        candidates = 1 + self.mine.negatives + self.mine.random
        if self.hardest is not None and self.hardest.keep >= candidates:
            raise ValueError(f"hardest.keep: {self.hardest.keep} of a group's {candidates} candidates; accepted: fewer")
        if self.model.dropout == 0 and any(term.over == "passes" for term in self.train.losses):
            raise ValueError(
                "losses: `over: passes` compares two passes with different dropout. Set a model.dropout above 0."
            )
        return self


class Config(StartedConfig):
    """A retriever, its training on documents, and the stages of the pipeline.

    Each stage builds on those before it. If a stage is null, the stages behind it are left out too. Without
    pre-training the retrievers begin from the original model.
    """

    recipe: Literal["simlm"]
    retriever: DualEncoderConfig
    """Model that all three retrievers begin from, after the pre-training. No stage begins from another stage's weights:
    the stages hand on negatives and scores."""
    retriever_1: TrainingPhase | None = None
    """Training with negatives from BM25's ranking. With `mine: {negatives: 0}` it has in-batch negatives alone."""
    retriever_2: TrainingPhase | None = None
    """Training with negatives from retriever 1's ranking."""
    retriever_3: TrainingPhase | None = None
    """Further round of mining, with negatives from retriever 2's ranking (section 4.2). No stage builds on it. Null
    leaves it out."""
    ranker: RankerPhase | None = None
    """Cross-encoder, trained with negatives from retriever 2's ranking. Null trains none, and leaves out `distilled`
    unless a contender is the `teacher`."""
    distilled: TrainingPhase | None = None
    """Third retriever, trained on the ranker's scores of groups that are mined from retriever 2's ranking, or on those
    of the `teacher`. The paper's loss is `listwise.kl` over the group (Eq. 5) and, with weight alpha,
    `simlm.contrastive` over the batch."""
    score: ScoreConfig = ScoreConfig()
    """Scoring of the groups that the ranker teaches with."""
    rerank: RerankConfig = RerankConfig()
    """Reranking by the ranker, when it is measured."""
    without_pretraining: bool = False
    """Train a control: retriever 1 from the start model, on the same groups (Table 7)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.without_pretraining and self.pretrain is None and self.start_from is None:
            raise ValueError("without_pretraining: it is compared with pretrain, which is null; accepted: false")
        phases = (self.ranker, self.distilled)
        reads = any(phase is not None and phase.train.reads_teacher for phase in phases)
        check_teacher(self.teacher, self.contenders, reads=reads)
        if self.ranker is not None and self.ranker.encoder != "model":
            check_encoder(self.ranker.encoder, self.ranker.model, self.retriever)
        learnt = {key: getattr(self, key) for key in ("retriever_2", "retriever_3", "ranker", "distilled")}
        for key, stage in learnt.items():
            if stage is not None and stage.mine.negatives == 0 and (key != "ranker" or stage.mine.random == 0):
                raise ValueError(f"{key}.mine.negatives: 0: the stage learns from mined negatives; accepted: 1 or more")
        return self


def build(config: Config) -> Outcome:
    """Build the graph: one pipeline per seed on one collection, and the results."""
    collection = Collection(config)
    begun = collection.initial_model("start retriever", config.retriever)
    results = Results(collection, config)
    untrained = start_retrieval(collection, begun, config)
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever, seed=seed)
        last, ranker = Pipeline(config, collection, results, seed).run(untrained)
    names = system_names(results.rows)
    return Outcome(
        results=results.gather([pair for pair in COMPARISONS if set(pair) <= set(names)]),
        data=collection.data,
        rows=results.rows,
        retrieval=last,
        ranker=None if ranker is None else ranker.step,
        split=config.evaluate.split,
        note=note_on(config.retriever.model),
    )


COMPARISONS = [
    ("distilled retriever", "retriever 2"),
    ("retriever 2", "retriever 1"),
    ("retriever 3", "retriever 2"),
    ("ranker over retriever 2", "retriever 2"),
    ("retriever 1", "retriever 1 without pre-training"),
    ("retriever 1", "BM25"),
    ("pre-trained", "start model"),
    ("start model", "BM25"),
]
"""Systems with their baselines. Those that exist are compared: each stage with the stage before it, as in Table 6."""


@dataclass(frozen=True)
class Pipeline:
    """The pipeline of one seed."""

    config: Config
    collection: Collection
    results: Results
    seed: int

    def run(self, untrained: Dense) -> tuple[Dense, Model | None]:
        """Run Figure 2 from a start model. Return the last retriever with its ranking, and the ranker."""
        config = self.config
        begun = started(self.results, self.collection, untrained, config, self.seed)
        encoder = begun.model

        if config.retriever_1 is None:
            return begun, None
        retriever_1 = self.train_retriever(1, encoder, config.retriever_1)
        if config.without_pretraining:
            self.train_retriever(1, untrained.model, config.retriever_1, name="retriever 1 without pre-training")

        if config.retriever_2 is None:
            return retriever_1, None
        retriever_2 = self.train_retriever(2, encoder, config.retriever_2, retriever_1)
        if config.retriever_3 is not None:
            self.train_retriever(3, encoder, config.retriever_3, retriever_2)

        teacher, ranker, judged = None, None, list[Step]()
        if config.teacher is not None:
            contender = contender_named(config.teacher, self.results, self.seed)
            teacher = teacher_by(contender, config.score, judged)
        if config.ranker is not None:
            reranked = self.train_ranker(config.ranker, encoder, retriever_2, teacher)
            ranker = reranked.ranker
            teacher = teacher or teacher_by(reranked, config.score, judged)

        if config.distilled is None or teacher is None:
            return retriever_2, ranker
        return self.distil(encoder, config.distilled, retriever_2, teacher, ranker), ranker

    def train_retriever(
        self,
        stage: Literal[1, 2, 3],
        encoder: Model,
        config: TrainingPhase,
        before: Dense | None = None,
        name: str | None = None,
    ) -> Dense:
        """Train retriever 1, 2 or 3 with negatives that BM25 or the previous retriever ranks high (Eq. 3), and retrieve
        with it."""
        name = name or f"retriever {stage}"
        negatives = self.mining(self.collection.lexical if before is None else before)
        with in_phase(f"retriever {stage}"):
            retriever = phase(
                self.label(name),
                self.collection,
                encoder,
                rankings=negatives if config.mine.negatives > 0 else None,
                seed=[self.seed, "retriever", stage],
                config=config,
                inputs=ScreenInputs(vectors=None if before is None else before.vectors),
            )
            return self.results.refresh(name, retriever, seed=self.seed)

    @in_phase("ranker")
    def train_ranker(self, config: RankerPhase, encoder: Model, retrieval: Dense, teacher: Teacher | None) -> Reranked:
        """Train the ranker, a cross-encoder, with negatives that retriever 2 ranks high (Eq. 4), and rerank with it."""
        name = "ranker over retriever 2"
        options: dict[str, Any] = {} if config.hardest is None else {"hardest": config.hardest}
        taken = encoder if config.encoder == "pre-trained" else None
        label = "start ranker" if taken is None else self.label("start ranker")
        ranker = phase(
            self.label("ranker"),
            self.collection,
            self.collection.initial_model(label, config.model, objective="ranker", encoder=taken),
            rankings=self.mining(retrieval),
            seed=[self.seed, "ranker"],
            config=config,
            inputs=ScreenInputs(vectors=retrieval.vectors),
            teacher=teacher,
            **options,
        )
        depth = self.config.rerank
        reranking = Reranked(self.label(name), self.collection.data, retrieval, depth, ranker=ranker)
        self.results.add(name, reranking, seed=self.seed, queries=depth.queries)
        return reranking

    @in_phase("distillation")
    def distil(
        self, encoder: Model, config: TrainingPhase, before: Dense, teacher: Teacher, ranker: Model | None
    ) -> Dense:
        """Train the last retriever to score like the teacher, over negatives that retriever 2 ranks high (Eq. 5), and
        retrieve with it. The teacher is the ranker, unless the config names a contender. It is frozen, so its scores
        are computed beforehand."""
        name, seed = "distilled retriever", [self.seed, "distilled"]
        groups = mine_groups(
            self.label(f"{name} groups"),
            self.collection,
            rankings=self.mining(before),
            seed=seed,
            config=config,
            inputs=ScreenInputs(ranker, before.vectors),
        )
        judged = teacher(self.label("judged"), groups)
        retriever = train_model(
            self.label(name),
            self.collection,
            encoder,
            rows=judged,
            rankings=self.mining(before),
            seed=seed,
            config=config,
        )
        return self.results.refresh(name, retriever, seed=self.seed)

    def mining(self, system: Dense | Lexical) -> Rankings:
        """Rank a system's documents for the negatives of all stages."""
        config = self.config
        stages = (config.retriever_1, config.retriever_2, config.retriever_3, config.ranker, config.distilled)
        return mining(system, mined_k(config.k, *stages))

    def label(self, text: str) -> str:
        """Return a step's label, with the seed if there are several."""
        return seeded(text, self.seed, self.config)
