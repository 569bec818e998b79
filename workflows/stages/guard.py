"""A guard: a second collection on which trained retrievers must stay about as good as the start model."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from sparring.components.config import Config
from sparring.components.evaluation.measures import needs_answers
from sparring.components.sources.base import AnySource
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, seeded
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.rows import Row, name_of
from sparring.workflows.systems.system import parts_of

START = "start model"
"""Name of the row that trained retrievers are compared with."""


class GuardConfig(Config):
    """A second collection with judged queries, unlike the first: a public one, or that of an earlier system."""

    data: AnySource
    split: str = "test"
    """Split whose queries are measured there."""
    loss: float = Field(0.02, gt=0, lt=1)
    """Largest loss against the start model, in the mean of the measure that selects systems. A system with a retriever
    that loses more cannot be chosen."""


def guard_rows(rows: list[Row], start: Model, config: CollectionConfig, guard: GuardConfig) -> list[Row]:
    """Measure the start model and every trained retriever of some rows on the guard's collection.

    All of them read its texts as `start` does, from which they were trained.
    """
    name = name_of(guard.data)
    measures = [measure for measure in config.evaluate.measures if not needs_answers(measure)]
    replaced: dict[str, Any] = {"split": guard.split, "select": None, "measures": measures}
    replaced |= {"other_qrels": {}, "other_rankings": {}}
    evaluate = config.evaluate.model_copy(update=replaced)
    settings = config.model_copy(update={"data": guard.data, "evaluate": evaluate, "contenders": {}})
    collection = Collection(settings)
    tokens = collection.foreign_retriever(start.step).tokens
    results = Results(collection, settings, name=name)
    for row in rows:
        if row.contender or not isinstance(row.system, Dense) or row.system.is_variant:
            continue
        with in_phase(row.metrics.phase):
            label = f"{seeded(row.name, row.seed, config)} on {name}"
            retriever = Model(row.system.retriever, tokens, row.system.model.objective)
            results.add(row.name, refresh(label, collection, retriever, settings), seed=row.seed, round=row.round)
    first = {node.fingerprint for node in graph(node for row in rows for node in row.steps)}
    return [replace(row, metrics=_labelled(row.metrics, first, name)) for row in results.rows]


def _labelled(metrics: Step, first: set[str], name: str) -> Step:
    """Name the collection in the labels of the steps that the `first` collection has not."""
    new = [node for node in graph([metrics]) if node.fingerprint not in first and name not in node.label]
    return relabelled(metrics, {node.fingerprint: f"{node.label} ({name})" for node in new})


def guarded_by(rows: list[Row], guards: list[Row]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """List for each system, by name and seed, the measures of its trained retrievers on the guard's collection, each
    beside those of the start model."""
    by_retriever = {row.system.retriever.fingerprint: row for row in guards if isinstance(row.system, Dense)}
    start = next(row.metrics for row in guards if row.name == START)
    losses: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        parts = [] if row.system is None else [part for part in parts_of(row.system) if isinstance(part, Dense)]
        measured = [by_retriever.get(part.retriever.fingerprint) for part in parts]
        trained = [guard.metrics for guard in measured if guard is not None and guard.trained]
        if trained:
            losses[row.name, row.seed] = [{"metrics": metrics, "start": start} for metrics in trained]
    return losses
