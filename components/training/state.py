"""How far a training is: what a checkpoint keeps beside weights and optimizer."""

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
    """Numbers that a resumed training goes on from."""

    update: int = 0
    """Updates made."""
    best: Best | None = None
    looks_without_better: int = 0
    """Validations since the best one."""
    seconds: float = 0.0
    operations: float = 0.0
    """Floating-point operations of this worker's updates."""
    sums: dict[str, float] = field(default_factory=dict)
    """Losses of the interval that is being logged, added up over its updates."""
    count: int = 0
    """Updates of that interval."""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingState:
        """Restore the state from the dictionary of `to_json`."""
        best = values["best"]
        return cls(**{**values, "best": Best(**best) if best is not None else None})
