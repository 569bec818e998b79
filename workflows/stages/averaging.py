"""Retrievers between a start model and a trained one."""

from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.steps.average import average
from sparring.workflows.store.dag import step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model


def averaged(
    label: str, collection: Collection, start: Model, trained: Model, weight: float, config: CollectionConfig
) -> Dense:
    """Average the weights of two models (WiSE-FT: Wortsman et al., 2022), and retrieve with the result."""
    model = step(f"{label} model", average, start=start.step, trained=trained.step, weight=weight)
    return refresh(label, collection, trained.after(model), config)
