"""The progress of a training, which a checkpoint keeps with the weights and the optimizer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Best:
    """The best validation so far."""

    value: float
    update: int


@dataclass
class TrainingState:
    """Numbers that a resumed training starts from."""

    update: int = 0
    """Number of finished updates."""
    best: Best | None = None
    looks_without_better: int = 0
    """Number of validations since the best one."""
    seconds: float = 0.0
    operations: float = 0.0
    """Floating-point operations of this worker's updates."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the losses since the last line of the log."""
    count: int = 0
    """Number of updates since the last line of the log."""
    workers: int = 1
    """Number of workers. A resumed training uses as many if it can, and so has the same rounding."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as a dictionary of plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingState:
        """Restore the state from the dictionary of `to_json`."""
        best = values["best"]
        return cls(**{**values, "best": Best(**best) if best is not None else None})
