"""CODER with evidence-based label smoothing, and reranking by reciprocal nearest neighbours (Zerveas et al., 2023).

A base model retrieves the ranking context of each training query. Candidates that are like the relevant documents get
a share of the target distribution, and the query encoder learns that distribution over the whole context.
`Training.run` is the paper's Algorithm 1, and "line" in this file is a line of it.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sparring.components.evaluation.measures import at_level
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.neighbours.reciprocal import NeighboursConfig
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.training.config import TemperatureConfig, TrainConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import RetrievalConfig, TrainingPhase, seeded
from sparring.workflows.stages.learning import in_round, learnt
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.stages.training import phase
from sparring.workflows.stages.untrained import add_untrained, start_retrieval
from sparring.workflows.steps.choose_neighbours import ChooseConfig
from sparring.workflows.steps.pictures import PicturesConfig, pictures
from sparring.workflows.steps.smooth import ContextConfig, SmoothConfig, contexts, smooth
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.neighbours import ByNeighbours
from sparring.workflows.systems.phases import EVALUATION, UNTRAINED, WARM_UP, round_name
from sparring.workflows.systems.rows import Outcome, note_on
from sparring.workflows.systems.system import System

BY_NEIGHBOURS = "by neighbours"


class InterpolationConfig(FusionConfig):
    """Fusion of two rankings' scores. The paper gives neither the weight nor the normalisation."""

    how: Literal["interpolate"] = "interpolate"


class Config(RetrievalConfig):
    """A base model, the contexts that it retrieves, their labels, and a training on them."""

    recipe: Literal["coder"]
    retriever: DualEncoderConfig
    warm: TrainingPhase | None = None
    """Training of the base model from the start model, as DPR's. Its ranked negatives come from BM25. Null takes the
    start model as the base model."""
    context: ContextConfig = ContextConfig()
    """The N candidates of each training query (Algorithm 1, line 3)."""
    smooth: SmoothConfig | None = None
    """Smoothing of the labels (lines 4 to 8). Null trains CODER alone, on the original labels."""
    documents: Literal["fixed", "learned"] = "fixed"
    """Document vectors. `fixed`: only the query encoder is trained, against the base model's document vectors.
    `learned`: both encoders are trained, and each round makes labels from its own vectors (the paper's Limitations).
    Then every update encodes its candidates, so contexts should be small."""
    rounds: int = Field(1, ge=1)
    """Number of rounds. In each round contexts are retrieved and labels smoothed again, and the model is trained on
    them."""
    train: TrainConfig | None = None
    """Training of CODER. Null trains nothing, and reranks what the base model retrieves."""
    temperature: TemperatureConfig = TemperatureConfig()
    """Temperature T of line 9, for fixed documents. With learned documents each loss has its own temperature."""
    rerank: NeighboursRerankConfig | None = None
    """Reranking by neighbours (section 3.1). Null does not rerank."""
    rerank_chosen: ChooseConfig | None = None
    """Reranking by neighbours with parameters that are chosen on other queries, without any training. Null does not
    rerank with them."""
    interpolate: InterpolationConfig | None = None
    """Interpolation of the base model's ranking with CODER's, as it is and reranked (Table 2). Null does not
    interpolate."""
    pictures: PicturesConfig | None = PicturesConfig()
    """Charts of the first seed's labels, predictions and training, for fixed documents. Null draws none."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.train is None and (self.smooth is not None or self.interpolate is not None):
            raise ValueError("smooth and interpolate need a training, and there is no `train`")
        if self.train is None and self.rounds > 1:
            raise ValueError(f"rounds: {self.rounds}: there is no `train`, of which each round has one; accepted: 1")
        if self.train is None:
            return self
        if self.context.size < 2:
            raise ValueError(
                f"context.size: {self.context.size}: a loss compares a document with the rest of its context; "
                "accepted: 2 or more"
            )
        if self.context.size > self.k:
            raise ValueError(f"context.size: {self.context.size} candidates, but only k: {self.k} are retrieved")
        return self


def build(config: Config) -> Outcome:
    """Build the graph: one base model and one CODER per seed, and the results."""
    collection = Collection(config)
    start = collection.initial_model("start retriever", config.retriever)
    results = Results(collection, config)
    figures: list[Step] = []
    untrained = start_retrieval(collection, start, config)
    for seed in config.seeds:
        add_untrained(results, untrained, config.retriever, seed=seed, entropy=True)
        last = Training(config, collection, results, seed, figures).run(start)
    return Outcome(
        results=results.gather(comparisons(config)),
        data=collection.data,
        rows=results.rows,
        retrieval=last,
        split=config.evaluate.split,
        note=note_on(config.retriever.model),
        pictures=tuple(figures[:1]),
    )


def base_name(config: Config) -> str:
    """Name the base model."""
    return "warm retriever" if config.warm is not None else "start model"


def comparisons(config: Config) -> list[tuple[str, str]]:
    """List systems with their baselines. The first comparison is the purpose of the run."""
    base = base_name(config)
    pairs = [("CODER", base)] if config.train is not None else []
    for system in [base, "CODER"] if config.train is not None else [base]:
        pairs += [(f"{system} {BY_NEIGHBOURS}", system)] if config.rerank is not None else []
        pairs += [(f"{system} {BY_NEIGHBOURS}, chosen", system)] if config.rerank_chosen is not None else []
    if config.interpolate is not None:
        pairs.append((f"{base} + CODER", "CODER"))
        pairs += [(f"{base} + CODER {BY_NEIGHBOURS}", f"CODER {BY_NEIGHBOURS}")] if config.rerank is not None else []
    return [*pairs, (base, "BM25")]


@dataclass(frozen=True)
class Training:
    """Base model and training of one seed."""

    config: Config
    collection: Collection
    results: Results
    seed: int
    figures: list[Step]
    """Figures of the seeds so far. This seed's figures are added."""

    def run(self, start: Model) -> Dense:
        """Run Algorithm 1 from a start model. Return the last retriever with its ranking."""
        config, base = self.config, base_name(self.config)
        with in_phase(UNTRAINED if config.warm is None else WARM_UP):
            retrieval = self.retrieve_with_base_model(start)  # lines 1 to 3
            base_retrieval = retrieval
            self.measure(base, retrieval)
        if config.train is None:
            return retrieval
        for i in range(1, config.rounds + 1):
            before = retrieval
            with in_phase(round_name(i)):
                groups = self.contexts(i, before)  # line 3
                labels = self.smoothed(i, before, groups)  # lines 4 to 8
                retriever = self.fine_tune(i, before, labels)  # line 9
                retrieval = self.refresh(i, before, retriever)
        with in_phase(EVALUATION):
            if config.pictures is not None and config.documents == "fixed":
                self.draw(before, groups, labels, retrieval)
            for kind, system in self.measure("CODER", retrieval).items():
                if config.interpolate is not None:
                    name = f"{base} + CODER {kind}".strip()
                    fusion, parts = config.interpolate.reaching(config.k), [base_retrieval, system]
                    mixed = Fused(self.label(name), self.collection.data, parts, fusion, with_split=False)
                    self.results.add(name, mixed, seed=self.seed)
        return retrieval

    def retrieve_with_base_model(self, start: Model) -> Dense:
        """Train the base model, and retrieve with it (lines 1 to 3)."""
        config, label, model = self.config, base_name(self.config), start
        if config.warm is not None:
            label = self.label(label)
            rankings = self.collection.bm25 if config.warm.mine.negatives > 0 else None
            model = phase(
                label,
                self.collection,
                start,
                rankings=rankings,
                seed=[self.seed, "warm retriever"],
                config=config.warm,
                part="warm-up",
            )
        return refresh(label, self.collection, model, config)

    def contexts(self, i: int, retrieval: Dense) -> Step:
        """Return the training queries' contexts with the original labels (line 3)."""
        return step(
            self.label(f"contexts {i}"),
            contexts,
            data=self.collection.data,
            tokens=self.collection.tokens,
            ranking=retrieval.ranking("train"),
            split="train",
            config=self.config.context,
        )

    def smoothed(self, i: int, retrieval: Dense, groups: Step) -> Step:
        """Return the same contexts with smoothed labels, if the config asks for them (lines 4 to 8)."""
        if self.config.smooth is None:
            return groups
        return step(
            self.label(f"labels {i}"),
            smooth,
            data=self.collection.data,
            vectors=retrieval.vectors,
            queries=retrieval.queries("train"),
            groups=groups,
            config=self.config.smooth,
        )

    def fine_tune(self, i: int, retrieval: Dense, groups: Step) -> Model:
        """Fit the target distribution (line 9). Validation uses contexts of other queries, with the original labels."""
        config, dev, model = self.config, None, retrieval.model
        assert config.train is not None
        if (look := config.train.validate_on_dev) is not None:
            dev = step(
                self.label(f"{look.split} contexts {i}"),
                contexts,
                data=self.collection.data,
                tokens=self.collection.tokens,
                ranking=retrieval.ranking(look.split),
                split=look.split,
                config=ContextConfig(size=look.negatives + 1, queries=look.queries),
            )
        objective = "coder" if config.documents == "fixed" else model.objective
        fixed: dict[str, Any] = {"vectors": retrieval.vectors, "temperature": config.temperature}
        return model.after(
            learnt(
                self.label(f"CODER {i}"),
                objective,
                in_round(config.train, i, config.rounds),
                start=model.step,
                dimensions=model.dimensions,
                rows=groups,
                dev=dev,
                data=self.collection.data,
                tokens=model.tokens,
                seed=[self.seed, "coder", i],
                part="retriever training",
                **(fixed if config.documents == "fixed" else {}),
            )
        )

    def refresh(self, i: int, before: Dense, retriever: Model) -> Dense:
        """Retrieve with the retriever. Documents whose vectors are fixed are not encoded again."""
        label = self.label(f"CODER {i}")
        if self.config.documents == "learned":
            return refresh(label, self.collection, retriever, self.config)
        return replace(before, label=label, model=retriever)

    def draw(self, before: Dense, groups: Step, labels: Step, after: Dense) -> None:
        """Draw Figures 2 and 11 to 13, of the last round."""
        config = self.config
        assert config.pictures is not None
        inner_product = NeighboursConfig(mix=1.0, geometric="none")
        similarity = config.smooth.similarity if config.smooth is not None else inner_product
        self.figures.append(
            step(
                self.label("pictures"),
                pictures,
                data=self.collection.data,
                vectors=before.vectors,
                queries=before.queries("train"),
                groups=groups,
                labels=labels if labels is not groups else None,
                model=after.retriever,
                trained=after.queries("train"),
                similarity=similarity,
                config=config.pictures,
            )
        )

    def measure(self, system: str, retrieval: Dense) -> dict[str, System]:
        """Measure a retriever, as it is (key "") and reranked by neighbours, and return these systems."""
        config = self.config
        systems: dict[str, System] = {"": retrieval}
        if config.rerank is not None:
            label = self.label(f"{system} {BY_NEIGHBOURS}")
            systems[BY_NEIGHBOURS] = ByNeighbours(label, retrieval, config.rerank, with_split=False)
        if (choose := config.rerank_chosen) is not None:
            choose = choose.model_copy(update={"measure": at_level(choose.measure, config.evaluate.relevant_from)})
            label = self.label(f"{system} {BY_NEIGHBOURS}, chosen")
            systems[f"{BY_NEIGHBOURS}, chosen"] = ByNeighbours(label, retrieval, choose, with_split=False)
        for kind, reranked in systems.items():
            if not kind and config.warm is None and system == base_name(config):
                continue  # the start model is measured already
            self.results.add(f"{system} {kind}".strip(), reranked, seed=self.seed, entropy=not kind)
        return systems

    def label(self, text: str) -> str:
        """Return a step's label, with the seed if there are several."""
        return seeded(text, self.seed, self.config)
