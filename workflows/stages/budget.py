"""Limits on the system that a run chooses."""

from typing import Any

from pydantic import Field, field_validator

from sparring.components.config import Config, UserError
from sparring.components.evaluation.budget import NEEDS
from sparring.workflows.steps.latency import measure_latency
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.deployable import Deployment, reason
from sparring.workflows.systems.rows import Row


class BudgetConfig(Config):
    """Limits on the chosen system. A system beyond a limit is measured like others, and cannot be chosen."""

    p95_ms: float | None = Field(None, gt=0)
    """Most milliseconds that 95 of 100 queries may take, each asked by itself. Null sets no limit."""
    memory_gb: float | None = Field(None, gt=0)
    """Most memory of a process that answers queries, in GB: Python with its libraries, the models and the indexes.
    Memory of a GPU is not counted. Null sets no limit."""
    disk_gb: float | None = Field(None, gt=0)
    """Most disk space of the models, the indexes and the documents, in GB. Null sets no limit."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by their keys."""
        values = {key: getattr(self, key) for key in NEEDS}
        return {key: value for key, value in values.items() if value is not None}


class TimedBudgetConfig(BudgetConfig):
    """Limits on the chosen system, and on the time of the run."""

    hours: float | None = Field(1.0, gt=0)
    """Hours that the whole run may take on this machine without other programs. Open values of the config give way
    until it fits. Null or `none` sets no limit."""

    @field_validator("hours", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if value == "none" else value


def latency(row: Row, split: str) -> Step | str:
    """Return the step that measures what a row's system needs to answer queries, or the reason why none can."""
    try:
        deployment = Deployment.of_row(row)
    except UserError as error:
        return reason(error)
    return step(f"{row.name} latency", measure_latency, data=row.data, split=split, system=deployment)
