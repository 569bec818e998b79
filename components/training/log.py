"""`metrics.jsonl`, the log of losses and validation measures of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sparring.components.compute.gather import rank
from sparring.components.files import append, replacing
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradients import Means, not_finite, over_workers
from sparring.components.training.state import TrainingState


class Outcome(NamedTuple):
    """Losses and gradient norm of an update, on the device."""

    update: int
    """Number of updates, including this one."""
    losses: Means
    norm: Tensor


class MetricsLog:
    """A log with one JSON line per interval of updates, written by the first worker.

    Losses are means over the interval. A resumed training first removes the lines of updates that it repeats. The last
    interval ends with the last update and may be shorter.
    """

    def __init__(self, path: Path, state: TrainingState, config: TrainConfig) -> None:
        self._path, self._config = path, config
        self._unread: list[Outcome] = []
        self._norm = 0.0
        self.loss: float | None = None
        """Sum of the loss terms of the last update that was read. If None, there is none."""
        if rank() == 0 and path.exists():
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [json.dumps(line) + "\n" for line in lines if line["update"] <= state.update]
            with replacing(path) as temporary:
                temporary.write_text("".join(kept))

    def add(self, outcome: Outcome) -> None:
        """Add an update to its interval. It stays on the device until `read`."""
        self._unread.append(outcome)

    def read(self, state: TrainingState) -> None:
        """Add the losses of all updates since the last call to `state`. Every worker must call this.

        The device is asked once for all of them. Raise FloatingPointError for the first update whose losses or gradient
        are not finite. No checkpoint may be written before this.
        """
        unread, self._unread = self._unread, []
        if not unread:
            return
        norms = torch.stack([outcome.norm for outcome in unread]).tolist()
        for (update, *_), losses, norm in zip(unread, over_workers([o.losses for o in unread]), norms, strict=True):
            if wrong := not_finite(losses, norm):
                raise FloatingPointError(f"update {update}: {wrong}. Lower the learning rate or use fp32.")
            for name, value in losses.items():
                state.sums[name] = state.sums.get(name, 0.0) + value
            state.count += 1
            self.loss, self._norm = sum(losses.values()), norm

    def is_due(self, state: TrainingState) -> bool:
        """Return True if an interval ends with the present update."""
        return state.update % self._config.log_every == 0 or state.update == self._config.updates

    def write_means(self, state: TrainingState, rate: float) -> None:
        """Write the means of the interval that ends with the present update, after `read`."""
        means = {name: round(value / state.count, 6) for name, value in state.sums.items()}
        norm = float(f"{self._norm:.6g}")
        means |= {"learning_rate": rate, "gradient_norm": norm, "seconds": round(state.seconds, 2)}
        self.write(state.update, means)
        state.sums, state.count = {}, 0

    def never_moved(self) -> bool:
        """Return True if every logged gradient was 0, so that nothing was learned."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []
        norms = [line["gradient_norm"] for line in lines if "gradient_norm" in line]
        return bool(norms) and not any(norms)

    def write(self, update: int, values: dict[str, float]) -> None:
        """Write a line with the values after an update."""
        if rank() == 0:
            append(self._path, json.dumps({"update": update, **values}) + "\n")
