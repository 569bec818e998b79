"""`metrics.jsonl`: the losses of a training, and what validation measured."""

from __future__ import annotations

import json
from pathlib import Path

from sparring.components.compute.gather import rank
from sparring.components.files import append, replacing
from sparring.components.training.config import TrainConfig
from sparring.components.training.gradients import Losses
from sparring.components.training.state import TrainingState


class MetricsLog:
    """Means over intervals, one JSON line each, written by the first worker. A resumed training first drops the lines
    of updates that it makes again. The last interval ends with the last update, however long it is."""

    def __init__(self, path: Path, state: TrainingState, config: TrainConfig) -> None:
        self._path, self._config = path, config
        if rank() == 0 and path.exists():
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            kept = [json.dumps(line) + "\n" for line in lines if line["update"] <= state.update]
            with replacing(path) as temporary:
                temporary.write_text("".join(kept))

    def add(self, state: TrainingState, losses: Losses, rate: float, norm: float) -> None:
        """Add an update's losses to its interval; at the interval's end write their means."""
        for name, value in losses.items():
            state.sums[name] = state.sums.get(name, 0.0) + value
        state.count += 1
        if state.update % self._config.log_every == 0 or state.update == self._config.updates:
            means = {name: round(value / state.count, 6) for name, value in state.sums.items()}
            means |= {"learning_rate": rate, "gradient_norm": float(f"{norm:.6g}"), "seconds": round(state.seconds, 2)}
            self.write(state.update, means)
            state.sums, state.count = {}, 0

    def never_moved(self) -> bool:
        """Check whether every logged gradient was 0, so that nothing was learnt."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []
        norms = [line["gradient_norm"] for line in lines if "gradient_norm" in line]
        return bool(norms) and not any(norms)

    def write(self, update: int, values: dict[str, float]) -> None:
        """Write a line of values after an update."""
        if rank() == 0:
            append(self._path, json.dumps({"update": update, **values}) + "\n")
