"""A phase of training: mine groups from a ranking, screen them if configured, and train a model on them."""

from dataclasses import dataclass, replace
from typing import Any

from sparring.components.config import Config, UserError
from sparring.components.retrieval.screening import ScreenConfig
from sparring.components.training.config import TrainConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import TrainingPhase, predicts_differences
from sparring.workflows.stages.learning import learnt
from sparring.workflows.stages.pretraining import generator
from sparring.workflows.stages.teacher import Teacher
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.score import RerankConfig, rerank
from sparring.workflows.steps.screen import screen
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.lexical import Lexical
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.system import Rankings


@dataclass(frozen=True)
class ScreenInputs:
    """Models and vectors for screening candidates: a ranker, and the vectors of the documents that made the ranking."""

    ranker: Model | None = None
    vectors: Step | None = None


NO_INPUTS = ScreenInputs()

LEAST_MINED = 100
"""Number of documents that a training query's ranking has at least, if `k` allows. Fewer save no time."""


def mined_k(k: int, *phases: TrainingPhase | None) -> int:
    """Return the number of documents that these trainings read of a training query's ranking, at most `k`.

    It is twice the depth, because positives and copies among the first documents are no negatives. Screening removes
    candidates anywhere, so it needs all `k`.
    """
    trainings = [phase for phase in phases if phase is not None]
    if any(phase.screen is not None for phase in trainings):
        return k
    return min(k, max([LEAST_MINED, *(2 * phase.mine.depth for phase in trainings)]))


def mining(system: Dense | Lexical, k: int) -> Rankings:
    """Rank a system's documents for mining: training queries `k` deep, other splits as deep as they are measured.

    A retriever that rescores candidates keeps its depth, on which the candidates depend.
    """
    rescores = isinstance(system, Dense) and system.search.rescore is not None
    training = system if rescores else replace(system, k=min(system.k, k))
    return lambda split: (training if split == "train" else system).ranking(split)


def phase(
    label: str,
    collection: Collection,
    model: Model,
    *,
    rankings: Rankings | None,
    seed: list[Any],
    config: TrainingPhase,
    inputs: ScreenInputs = NO_INPUTS,
    teacher: Teacher | None = None,
    part: str | None = None,
    **options: Config,
) -> Model:
    """Mine as many groups as the training takes, and train the model on them. If its losses need scores, the `teacher`
    adds them. `options` are as for `train_model`."""
    groups = mine_groups(f"{label} groups", collection, rankings=rankings, seed=seed, config=config, inputs=inputs)
    if teacher is not None and config.train.reads_teacher:
        groups = teacher(f"{label} scored groups", groups)
    return train_model(
        label, collection, model, rows=groups, rankings=rankings, seed=seed, config=config, part=part, **options
    )


def mine_groups(
    label: str,
    collection: Collection,
    *,
    rankings: Rankings | None,
    seed: list[Any],
    config: TrainingPhase,
    inputs: ScreenInputs = NO_INPUTS,
    gate: Step | None = None,
) -> Step:
    """Mine one group for each visit of a training query. Queries behind a closed gate have none. Without rankings all
    negatives are random, unless the config takes negatives from the source."""
    ranking = rankings("train") if rankings is not None and config.mine.given is None else None
    if config.mine.positives == "answering" or (config.screen is not None and config.screen.answering):
        if ranking is None:
            raise UserError(
                f"{label}: mine: positives and negatives by answer are found in a ranking, and there is none here"
            )
        ranking = collection.answering(ranking, ["train"])
    if config.screen is not None:
        ranking = screened(label, collection, ranking, config.screen, inputs)
    return step(
        label,
        mine,
        data=collection.data,
        tokens=collection.tokens,
        ranking=ranking,
        split="train",
        groups=config.train.updates * config.train.batch,
        seed=seed,
        config=config.mine,
        gate=gate,
    )


def screened(
    label: str, collection: Collection, ranking: Step | None, config: ScreenConfig, inputs: ScreenInputs
) -> Step:
    """Mark the candidates of a ranking that may become negatives."""
    if ranking is None:
        raise UserError(f"{label}: screen: candidates are screened in a ranking, and there is none here")
    votes = None
    if config.vote is not None:
        if inputs.ranker is None:
            raise UserError(f"{label}: screen.vote: there is no ranker yet that could be asked")
        votes = step(
            f"{label} votes",
            rerank,
            data=collection.data,
            tokens=inputs.ranker.tokens,
            ranking=ranking,
            split="train",
            ranker=inputs.ranker.step,
            config=RerankConfig(depth=config.vote.depth),
        )
    if config.reciprocal is not None and inputs.vectors is None:
        raise UserError(f"{label}: screen.reciprocal: this ranking was not made by vectors")
    return step(
        f"{label} screened",
        screen,
        data=collection.data,
        tokens=collection.tokens,
        ranking=ranking,
        split="train",
        votes=votes,
        vectors=inputs.vectors if config.reciprocal is not None else None,
        config=config,
    )


def train_model(
    label: str,
    collection: Collection,
    model: Model,
    *,
    rows: Step,
    rankings: Rankings | None,
    seed: list[Any],
    config: TrainingPhase,
    part: str | None = None,
    **options: Config,
) -> Model:
    """Train the model on groups. If the config asks for it, validate on groups that are mined from `rankings`. `part`
    is the part of a run that the training belongs to, by default `<objective> training`. `options` are configs that
    only the model's objective takes, by parameter name."""
    objective, artifacts = model.objective, {}
    if config.difference is not None and predicts_differences(config.train):
        if objective != "retriever":
            raise ValueError(f"{label}: difference: it is predicted from a retriever's vectors; accepted: null")
        objective, options = "diffcse_retriever", {**options, "difference": config.difference}
        if config.generator is not None:
            artifacts["generator"] = generator(
                f"{label} generator", collection, model, config.generator, seed[0], edits=config.difference
            )
    taught = rows.description.makes not in ("groups", "pairs") or config.mine.given == "scores"
    dev = None
    if (look := config.train.validate_on_dev) is not None:
        source = config.mine.given
        if source == "scores" and look.measure != "loss":
            source = "negatives"  # ranks need no teacher, which a dev split may lack
        ranking = rankings(look.split) if rankings is not None and source is None else None
        mined = ranking is not None or source is not None
        negatives = {"negatives": look.negatives} if mined else {"negatives": 0, "random": look.negatives}
        dev = step(
            f"{label} {look.split} groups",
            mine,
            data=collection.data,
            tokens=collection.tokens,
            ranking=ranking,
            split=look.split,
            groups=look.queries,
            seed=[*seed, look.split],
            config=MineConfig(**negatives, given=source),
        )
    return model.after(
        learnt(
            label,
            objective,
            config.train,
            taught=taught,
            dev_taught=config.mine.given == "scores",
            dimensions=model.dimensions,
            start=model.step,
            rows=rows,
            dev=dev,
            data=collection.data,
            tokens=model.tokens,
            seed=seed,
            part=part or f"{model.objective} training",
            **artifacts,
            **options,
        )
    )


def splits_for(*trainings: TrainConfig | None) -> list[str]:
    """List the splits that need a ranking for mining these trainings' groups."""
    looks = [config.validate_on_dev for config in trainings if config is not None]
    return list(dict.fromkeys(["train", *(look.split for look in looks if look is not None)]))
