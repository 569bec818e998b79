"""Early verdicts of a run: lines for those who watch it, and a report that is there if the run is stopped."""

import textwrap
import threading

from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.quantities import between
from sparring.workflows.report.finished import Json
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.view import columns
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store

GAP = "  "
WIDTH = 110
"""Maximum number of columns of a line."""


class EarlyVerdicts:
    """The early verdicts of a run. Each is written to the run's folder as soon as it is there."""

    def __init__(self, experiment: Experiment, store: Store, forecast: Forecast | None) -> None:
        self._experiment, self._store, self._forecast = experiment, store, forecast
        self._outcomes = {outcome.results.fingerprint: outcome for outcome in experiment.outcome.early}
        self._done = set[str]()
        self._lock = threading.Lock()

    def after(self, node: Step) -> list[str]:
        """Write the report of the early outcome that a finished step completed, and return its verdict as lines.

        The list is empty for other steps, and for a verdict that a later one has overtaken.
        """
        with self._lock:  # of steps that run at once
            self._done.add(node.fingerprint)
            outcome = self._outcomes.get(node.fingerprint)
            if outcome is None or self._experiment.outcome.newest(self._store) is not outcome:
                return []
            folder = RunFolder(self._experiment.newest(self._store), self._store)
            return self._lines(folder.write_report(self._done), folder)

    def _lines(self, metrics: Json, folder: RunFolder) -> list[str]:
        """Lay out the verdict, what is missing, and the time of the rest."""
        verdict = metrics["verdict"]
        if verdict is None:
            return []
        rest = ""
        if self._forecast is not None and not self._forecast.over:
            rest = f" The rest takes {between(*self._forecast.left_between({}))}."
        width = min(WIDTH, columns())
        texts = [" ".join(verdict["sentences"]), " ".join(verdict["early"]) + rest]
        texts.append(f"Ctrl-C keeps this verdict. Its report: {folder.page}")
        return [f"{GAP}{line}" for text in texts for line in textwrap.wrap(text, width - 2, break_on_hyphens=False)]
