"""The trials of a tuning and their table, which is kept in `trials.json` in the run's folder."""

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
    """The experiment with other numbers."""

    number: int
    point: Point
    """The values that it sets, by name; empty for the baseline, which is the config as it is."""
    values: dict[str, Any]
    """Its values, by name, for a reader; of the baseline those in the config, where it has them."""
    state: State = "waiting"
    measures: list[float] = field(default_factory=list)
    """The measures of the systems that it has reached, in their order."""
    seconds: float = 0.0
    """The time of its own steps, without those that other trials had done."""
    steps: int = 0
    """How many steps it ran itself."""
    reason: str = ""
    """Why it failed."""
    artifacts: list[str] = field(default_factory=list)
    """The names of all that its measures stand on, which `clean` of another run keeps."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do; a failed trial runs again when the command is repeated."""
        return self.state in ("stopped", "done")


@dataclass
class TrialTable:
    """All trials of a tuning, and what they have in common."""

    folder: Path
    measure: str
    systems: list[str]
    split: str
    goal: Literal["max", "min"]
    names: list[str]
    """The names in the search space."""
    identity: str
    """A digest of the tuning, but for the number of trials. Trials with another identity belong to another tuning."""
    trials: list[Trial] = field(default_factory=list)
    error: float | None = None
    """The standard error of the best trial's last measure over the queries, once it is known."""
    earlier: list[str] = field(default_factory=list)
    """The names of artifacts that trials of this folder stood on which the table has no more, for `clean --whole`."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the table in a run's folder; None where there is none."""
        try:
            fields = json.loads((folder / TRIALS).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise UserError(
                f"{folder / TRIALS}: not JSON: {error}; remove it: what the trials' steps made is kept"
            ) from None
        try:
            trials = [Trial(**trial) for trial in fields.pop("trials")]
            return cls(folder=folder, trials=trials, **fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder / TRIALS}: not a table of trials: {error}; remove it: what the trials' steps made is kept"
            ) from None

    def resume(self) -> None:
        """Take over the trials of an earlier run of the same tuning; those that are not finished wait again."""
        earlier = TrialTable.read(self.folder)
        if earlier is None:
            return
        if earlier.identity != self.identity:
            self.earlier = earlier.artifacts
            return
        self.trials, self.earlier = earlier.trials, earlier.earlier
        for trial in self.trials:
            if not trial.finished:
                trial.state, trial.reason = "waiting", ""

    def cut(self, count: int) -> None:
        """Leave out all trials but the first `count`."""
        self.earlier, self.trials = replace(self, trials=self.trials[count:]).artifacts, self.trials[:count]

    def forget_artifacts(self) -> None:
        """Say that no trial stands on anything in the store any more."""
        self.earlier = []
        for trial in self.trials:
            trial.artifacts = []

    def save(self) -> None:
        """Write `trials.json`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / TRIALS, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """What `trials.json` says."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}

    @property
    def artifacts(self) -> list[str]:
        """The names of all that trials of this folder stand on or stood on."""
        return list(dict.fromkeys([*self.earlier, *(name for trial in self.trials for name in trial.artifacts)]))

    @property
    def under_way(self) -> bool:
        """Whether trials wait or run."""
        return any(trial.state in ("waiting", "running") for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The best of the trials that reached the last system; the first of equals."""
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(done, key=lambda trial: self._cost(trial.measures[-1]), default=None)

    @property
    def best_first(self) -> list[Trial]:
        """The trials in order: those that reached more systems first, and among equals the better ones first."""

        def order(trial: Trial) -> tuple[int, float]:
            return -len(trial.measures), self._cost(trial.measures[-1]) if trial.measures else math.inf

        return sorted(self.trials, key=order)

    def _cost(self, value: float) -> float:
        """A number that is lower for a better measure."""
        return -value if self.goal == "max" else value

    @property
    def best_config(self) -> Path:
        """The place of the best trial's config; the name gives its run a folder of its own."""
        return self.folder / f"{self.folder.name}-best.yaml"

    @property
    def counts(self) -> str:
        """`12 trials: 5 done, 6 stopped, 1 failed`."""
        states = [trial.state for trial in self.trials]
        parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=STATES.index))]
        return f"{len(states)} trial{'s' if len(states) != 1 else ''}: {', '.join(parts)}"
