"""A recipe written from the documentation alone, outside the repository's folder of recipes: pre-train on the
collection itself, with any objective over its documents, and measure the retriever before and after."""

from pydantic import Field

from sparring.components.models.configs import DualEncoderConfig
from sparring.components.objectives.parts.compatibility import check_training
from sparring.components.training.config import TrainConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import step
from sparring.workflows.systems.rows import Outcome, note_on


class Config(CollectionConfig):
    """A collection, a retriever and an objective."""

    recipe: str
    retriever: DualEncoderConfig
    objective: str = Field(pattern=r"\.")
    """The module of the objective."""
    train: TrainConfig


def build(config: Config) -> Outcome:
    """Pre-train one retriever a seed; measure it beside BM25 and the start model."""
    collection = Collection(config)
    start = collection.initial_model("start retriever", config.retriever)
    results = Results(collection, config)
    untrained = last = refresh("start", collection, start, config)
    check_training(config.objective, config.train, "retriever")
    for seed in config.seeds:
        results.add("BM25", collection.lexical, seed=seed)
        results.add("start model", untrained, seed=seed)
        pretrained = step(
            f"retriever {seed}",
            train,
            objective=config.objective,
            rows=collection.data,
            dev=None,
            data=collection.data,
            tokens=start.tokens,
            start=start.step,
            seed=[seed],
            config=config.train,
        )
        last = refresh(f"retriever {seed}", collection, start.after(pretrained), config)
        results.add("retriever", last, seed=seed)
    return Outcome(
        results=results.gather([("retriever", "start model")]),
        data=collection.data,
        rows=results.rows,
        retrieval=last,
        split=config.evaluate.split,
        note=note_on(config.retriever.model),
    )
