"""The trials of a tuning and their table, `trials.json` in the run's folder."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from sparring.components.config import UserError
from sparring.components.files import write_json
from sparring.workflows.tuning.search_space import Point

TRIALS = "trials.json"

State = Literal["waiting", "running", "stopped", "done", "failed"]
STATES: list[State] = ["done", "stopped", "failed", "running", "waiting"]


@dataclass
class Trial:
    """A run of the experiment with changed values."""

    number: int
    point: Point
    """Values that it sets, by name. The baseline is the unchanged config and sets none."""
    values: dict[str, Any]
    """Values to show, by name. For the baseline, the values in the config."""
    state: State = "waiting"
    measures: list[float] = field(default_factory=list)
    """Measures of the systems that it has reached, in order."""
    seconds: float = 0.0
    """Duration of the steps that it ran itself."""
    steps: int = 0
    """Number of steps that it ran itself."""
    reason: str = ""
    """Reason of a failure."""
    artifacts: list[str] = field(default_factory=list)
    """Names of the artifacts behind its measures. `clean` of another run keeps them."""
    rungs: list[tuple[int, float]] = field(default_factory=list)
    """Numbers of the rungs at which it was compared, with the values: of a validation, or of a system's measure."""

    @property
    def finished(self) -> bool:
        """The trial needs no more work. A failed trial runs again when the command is repeated."""
        return self.state in ("stopped", "done")

    def wait(self) -> None:
        """Let the trial run again. It reads from the store what it has reached, and is compared by that anew."""
        self.state, self.reason, self.rungs = "waiting", "", []


@dataclass
class TrialTable:
    """All trials of a tuning, and what they share."""

    folder: Path
    measure: str
    systems: list[str]
    split: str
    goal: Literal["max", "min"]
    names: list[str]
    """Names in the search space."""
    identity: str
    """Digest of the tuning without the number of trials. Trials with another identity belong to another tuning."""
    trials: list[Trial] = field(default_factory=list)
    error: float | None = None
    """Standard error of the best trial's last measure over the queries. If None, it is not computed yet."""
    earlier: list[str] = field(default_factory=list)
    """Names of the artifacts of former trials of this folder, for `clean --whole`."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the table in a run's folder. Return None if there is none."""
        try:
            fields = json.loads((folder / TRIALS).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise UserError(
                f"{folder / TRIALS}: not JSON ({error}). Delete the file: the trials' artifacts stay."
            ) from None
        try:
            trials = [
                Trial(**{**trial, "rungs": [(int(rung), float(value)) for rung, value in trial.get("rungs", [])]})
                for trial in fields.pop("trials")
            ]
            return cls(folder=folder, trials=trials, **fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder / TRIALS}: not a table of trials ({error}). Delete the file: the trials' artifacts stay."
            ) from None

    def resume(self) -> None:
        """Take over the trials of an earlier run of the same tuning. Unfinished trials wait again."""
        earlier = TrialTable.read(self.folder)
        if earlier is None:
            return
        if earlier.identity != self.identity:
            self.earlier = earlier.artifacts
            return
        self.trials, self.earlier = earlier.trials, earlier.earlier
        for trial in self.trials:
            if not trial.finished:
                trial.wait()

    def cut(self, count: int) -> None:
        """Keep only the first `count` trials."""
        self.earlier, self.trials = replace(self, trials=self.trials[count:]).artifacts, self.trials[:count]

    def forget_artifacts(self) -> None:
        """Forget all artifacts, as they are no longer in the store."""
        self.earlier = []
        for trial in self.trials:
            trial.artifacts = []

    def save(self) -> None:
        """Write `trials.json`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / TRIALS, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """Contents of `trials.json`."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}

    @property
    def artifacts(self) -> list[str]:
        """Names of the artifacts of present and former trials of this folder."""
        return list(dict.fromkeys([*self.earlier, *(name for trial in self.trials for name in trial.artifacts)]))

    @property
    def under_way(self) -> bool:
        """Some trials wait or run."""
        return any(trial.state in ("waiting", "running") for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """Best trial that reached the last system; the first of equally good trials."""
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(done, key=lambda trial: self._cost(trial.measures[-1]), default=None)

    @property
    def best_first(self) -> list[Trial]:
        """Trials sorted by the number of systems they reached, most first, and then by their last measure, best
        first."""

        def order(trial: Trial) -> tuple[int, float]:
            return -len(trial.measures), self._cost(trial.measures[-1]) if trial.measures else math.inf

        return sorted(self.trials, key=order)

    def _cost(self, value: float) -> float:
        """Map a measure to a number that is lower for a better measure."""
        return -value if self.goal == "max" else value

    @property
    def best_config(self) -> Path:
        """Path of the best trial's config. The run of that config gets a folder of this name."""
        return self.folder / f"{self.folder.name}-best.yaml"

    @property
    def counts(self) -> str:
        """Numbers of trials by state: `12 trials: 5 done, 6 stopped, 1 failed`."""
        states = [trial.state for trial in self.trials]
        parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=STATES.index))]
        return f"{len(states)} trial{'s' if len(states) != 1 else ''}: {', '.join(parts)}"
