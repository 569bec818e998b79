"""SimLM: pre-training on the collection's documents, and a pipeline of four trainings on its queries (Wang et al.,
2023). `Pipeline.run` is the paper's Figure 2."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.training.config import HardestConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import TrainingPhase, check_encoder, seeded
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.starting import StartedConfig, started
from sparring.workflows.stages.training import ScreenInputs, mine_groups, phase, train_model
from sparring.workflows.stages.untrained import add_untrained, start_retrieval
from sparring.workflows.steps.score import RerankConfig, ScoreConfig
from sparring.workflows.store.dag import in_phase
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.rows import Outcome, note_on, system_names


class RankerPhase(TrainingPhase):
    """The ranker, and its training on negatives from retriever 2's ranking (Eq. 4)."""

    model: CrossEncoderConfig
    """Any pre-trained model: SimLM's pre-training is for retrievers, and the paper's ranker is ELECTRA."""
    encoder: Literal["model", "pre-trained"] = "model"
    """What the ranker begins from: `model` as it is, or the retrievers' start (Table 5); `model` must then be made from
    the retriever's model."""
    hardest: HardestConfig | None = None
    """Learn from the hardest of a group's candidates alone, as the public code does. Null for all, as the paper
    says."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        candidates = 1 + self.mine.negatives + self.mine.random
        if self.hardest is not None and self.hardest.keep >= candidates:
            raise ValueError(f"hardest.keep: {self.hardest.keep} of a group's {candidates} candidates; accepted: fewer")
        if self.model.dropout == 0 and any(term.over == "passes" for term in self.train.losses):
            raise ValueError("losses: over: passes: two passes differ by dropout; accepted: a model.dropout above 0")
        return self


class Config(StartedConfig):
    """A retriever, what it learns from documents, and the stages of the pipeline.

    Each stage builds on those before it: a stage that is null leaves out those behind it too. Without pre-training the
    retrievers begin from the model as it is.
    """

    recipe: Literal["simlm"]
    retriever: DualEncoderConfig
    """The model that all three retrievers begin from, by way of the pre-training. No stage begins from another's
    weights: they hand on negatives and scores."""
    retriever_1: TrainingPhase | None = None
    """Negatives from BM25's ranking; with `mine: {negatives: 0}` in-batch ones alone."""
    retriever_2: TrainingPhase | None = None
    """Negatives from retriever 1's ranking."""
    retriever_3: TrainingPhase | None = None
    """A further round of mining, with negatives from retriever 2's ranking (section 4.2). No stage builds on it. Null
    for none."""
    ranker: RankerPhase | None = None
    """A cross encoder. Negatives from retriever 2's ranking."""
    distilled: TrainingPhase | None = None
    """A third retriever, which learns from the ranker's scores of groups that are mined from retriever 2's ranking. The
    paper's loss is `listwise.kl` over the group (Eq. 5) and, with weight alpha, `simlm.contrastive` over the batch."""
    score: ScoreConfig = ScoreConfig()
    """How the ranker scores the groups that it teaches by."""
    rerank: RerankConfig = RerankConfig()
    """What the ranker reranks where it is measured."""
    without_pretraining: bool = False
    """A control: train retriever 1 from the start model too, on the same groups (Table 7)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.without_pretraining and self.pretrain is None and self.start_from is None:
            raise ValueError("without_pretraining: it is compared with pretrain, which is null; accepted: false")
        if self.ranker is not None and self.ranker.encoder != "model":
            check_encoder(self.ranker.encoder, self.ranker.model, self.retriever)
        learnt = {key: getattr(self, key) for key in ("retriever_2", "retriever_3", "ranker", "distilled")}
        for key, stage in learnt.items():
            if stage is not None and stage.mine.negatives == 0 and (key != "ranker" or stage.mine.random == 0):
                raise ValueError(f"{key}.mine.negatives: 0: the stage learns from mined negatives; accepted: 1 or more")
        return self


def build(config: Config) -> Outcome:
    """The graph: one pipeline a seed on one collection, and the results."""
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
"""Systems with their baselines, of which those are compared that are there: each stage with the one before it, as in
Table 6."""


@dataclass(frozen=True)
class Pipeline:
    """One seed's pipeline."""

    config: Config
    collection: Collection
    results: Results
    seed: int

    def run(self, untrained: Dense) -> tuple[Dense, Model | None]:
        """Figure 2, from a start model; what the last retriever retrieves, and the ranker."""
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

        if config.ranker is None:
            return retriever_2, None
        ranker = self.train_ranker(config.ranker, encoder, retriever_2)

        if config.distilled is None:
            return retriever_2, ranker.ranker
        return self.distil(encoder, config.distilled, ranker), ranker.ranker

    def train_retriever(
        self,
        stage: Literal[1, 2, 3],
        encoder: Model,
        config: TrainingPhase,
        before: Dense | None = None,
        name: str | None = None,
    ) -> Dense:
        """Retrievers 1 to 3: train the encoder with negatives that BM25, or the retriever before, ranks high (Eq. 3),
        and retrieve with it."""
        name = name or f"retriever {stage}"
        negatives = self.collection.bm25 if before is None else before.ranking
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
    def train_ranker(self, config: RankerPhase, encoder: Model, retrieval: Dense) -> Reranked:
        """The ranker: train a cross encoder with negatives that retriever 2 ranks high (Eq. 4), and rerank with it."""
        name = "ranker over retriever 2"
        options: dict[str, Any] = {} if config.hardest is None else {"hardest": config.hardest}
        taken = encoder if config.encoder == "pre-trained" else None
        label = "start ranker" if taken is None else self.label("start ranker")
        ranker = phase(
            self.label("ranker"),
            self.collection,
            self.collection.initial_model(label, config.model, objective="ranker", encoder=taken),
            rankings=retrieval.ranking,
            seed=[self.seed, "ranker"],
            config=config,
            inputs=ScreenInputs(vectors=retrieval.vectors),
            **options,
        )
        depth = self.config.rerank
        reranking = Reranked(self.label(name), self.collection.data, retrieval, ranker, depth)
        self.results.add(name, reranking, seed=self.seed, queries=depth.queries)
        return reranking

    @in_phase("distillation")
    def distil(self, encoder: Model, config: TrainingPhase, teacher: Reranked) -> Dense:
        """The last retriever: train the encoder to score as the ranker does, over negatives that retriever 2 ranks high
        (Eq. 5), and retrieve with it. The ranker is frozen, so its scores are computed beforehand."""
        name, seed, before = "distilled retriever", [self.seed, "distilled"], teacher.over
        assert isinstance(before, Dense)
        groups = mine_groups(
            self.label(f"{name} groups"),
            self.collection,
            rankings=before.ranking,
            seed=seed,
            config=config,
            inputs=ScreenInputs(teacher.ranker, before.vectors),
        )
        judged = teacher.teach(self.label("judged"), groups, self.config.score)
        retriever = train_model(
            self.label(name),
            self.collection,
            encoder,
            rows=judged,
            rankings=before.ranking,
            seed=seed,
            config=config,
        )
        return self.results.refresh(name, retriever, seed=self.seed)

    def label(self, text: str) -> str:
        """A step's label, with the seed where there are several."""
        return seeded(text, self.seed, self.config)
