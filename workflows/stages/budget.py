"""Limits on the system that a run chooses."""

from typing import Any

from pydantic import Field, field_validator

from sparring.components.config import Config


class BudgetConfig(Config):
    """Limits on the chosen system. A system beyond a limit is measured like others, and cannot be chosen."""

    p95_ms: float | None = Field(None, gt=0)
    """Most milliseconds that 95 of 100 queries may take, each asked by itself. Null sets no limit."""
    memory_gb: float | None = Field(None, gt=0)
    """Most memory of a process that answers queries, in GB: Python with its libraries, the models and the indexes.
    Memory of a GPU is not counted. Null sets no limit."""
    disk_gb: float | None = Field(None, gt=0)
    """Most disk space of the models, the indexes and the documents, in GB. Null sets no limit."""


class TimedBudgetConfig(BudgetConfig):
    """Limits on the chosen system, and on the time of the run."""

    hours: float | None = Field(1.0, gt=0)
    """Hours that the whole run may take on this machine without other programs. Open values of the config give way
    until it fits. Null or `none` sets no limit."""

    @field_validator("hours", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if value == "none" else value
