"""`metrics.jsonl`, the log of losses and validation measures of a training."""

from __future__ import annotations

import json
from pathlib import Path

from sparring.components.compute.gather import rank
from sparring.components.files import append, replacing
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradients import Losses
from sparring.components.training.state import TrainingState


class MetricsLog:
    """A log with one JSON line per interval of updates, written by the first worker.

    Losses are means over the interval. A resumed training first removes the lines of updates that it repeats. The last
    interval ends with the last update and may be shorter.
    """

    def __init__(self, path: Path, state: TrainingState, config: TrainConfig) -> None:
        self._path, self._config = path, config
        if rank() == 0 and path.exists():
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [json.dumps(line) + "\n" for line in lines if line["update"] <= state.update]
            with replacing(path) as temporary:
                temporary.write_text("".join(kept))

    def add(self, state: TrainingState, losses: Losses, rate: float, norm: float) -> None:
        """Add an update's losses to its interval. At the end of the interval, write the means."""
        for name, value in losses.items():
            state.sums[name] = state.sums.get(name, 0.0) + value
        state.count += 1
        if state.update % self._config.log_every == 0 or state.update == self._config.updates:
            means = {name: round(value / state.count, 6) for name, value in state.sums.items()}
            means |= {"learning_rate": rate, "gradient_norm": float(f"{norm:.6g}"), "seconds": round(state.seconds, 2)}
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
