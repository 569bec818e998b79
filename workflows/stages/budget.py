"""Limits on the system that a run chooses."""

from pydantic import Field

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
