"""Show running trials: lines about their progress, and their numbers in TensorBoard or another tracker."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparring.components.config import UserError
from sparring.workflows.running.polling import repeated
from sparring.workflows.running.tracking import Tracker
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.progress import describe
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import TunedExperiment
from sparring.workflows.tuning.report import format_trial
from sparring.workflows.tuning.trials import Trial, TrialTable

SECONDS = {True: 0.5, False: 15.0}
"""Seconds between two lines about progress, on a terminal (True) and elsewhere."""
CLEAR = "\r\033[K"
"""Clears the current line of a terminal."""


@dataclass
class Monitor:
    """Shows and tracks the trials of a table."""

    tuned: TunedExperiment
    table: TrialTable
    store: Store
    tracker: Tracker

    def announce(self, trial: Trial) -> None:
        """Print a line about a trial that has a new measure or has ended, and track its numbers."""
        _print(format_trial(self.table, trial))
        self._track(trial)

    def announce_wait(self, trial: Trial, wait: str) -> None:
        """Print what a step of a trial waits for."""
        _print(f"trial {trial.number}: {wait}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Show and track the running trials until the block ends."""
        live = sys.stderr.isatty()
        try:
            with repeated(SECONDS[live], self._show):
                yield
        finally:
            if live:
                print(CLEAR, end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        running = [trial for trial in self.table.trials if trial.state == "running"]
        for trial in running:
            self._track(trial)
        if running:
            line = " | ".join(f"trial {trial.number}: {self._progress(trial)}" for trial in running)
            width = shutil.get_terminal_size((100, 24)).columns - 1
            text = f"{CLEAR}{line[:width]}" if sys.stderr.isatty() else f"{line}\n"
            print(text, end="", file=sys.stderr, flush=True)

    def _track(self, trial: Trial) -> None:
        """Send a trial's measures and the losses of its trainings to the tracker, whichever trial ran these."""
        for node in graph([step for seeds in self._steps(trial) for step in seeds]):
            if node.description.models == "training" and (self.store.path(node) / "metrics.jsonl").exists():
                self.tracker.send_training(f"trial {trial.number}/{node.label}", self.store.path(node))
        for number, value in enumerate(trial.measures, 1):
            self.tracker.send(f"trial {trial.number}", {self.table.measure: value}, number)

    def _progress(self, trial: Trial) -> str:
        """Describe the step that a trial runs now, and its progress."""
        systems = self._steps(trial)[len(trial.measures) :]
        waiting = pending([step for steps in systems for step in steps], self.store)
        if not waiting:
            return "measured"
        progress = describe(self.store.path(waiting[0]))
        return waiting[0].label + (f" {progress}" if progress else "")

    def _steps(self, trial: Trial) -> list[list[Step]]:
        """List the steps that measure a trial's systems.

        The list is empty if the experiment does not accept the trial's values; the trial then reports the reason.
        """
        try:
            return self.tuned.measure_steps(self.tuned.experiment(trial.point))
        except UserError:
            return []


def _print(line: str) -> None:
    """Print a line in place of the one about progress."""
    print(f"{CLEAR}{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
