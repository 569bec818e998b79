"""A run's folder: config.yaml and its origin, plan.txt, links to the artifacts, metrics.json and report.html."""

import fcntl
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparring.components.files import write_json
from sparring.components.yaml_files import yaml_text
from sparring.workflows.experiments.loading import CONFIG, FROM, Experiment, keep_file
from sparring.workflows.report import report
from sparring.workflows.report.finished import finished_steps
from sparring.workflows.report.metrics import METRICS, metrics_of
from sparring.workflows.report.page import REPORT
from sparring.workflows.running.plan import plan_text
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

Json = dict[str, Any]

PLAN = "plan.txt"
"""The plan before the run. A run that `clean` has removed from the store has none."""


@contextmanager
def at_work(run: Path) -> Iterator[None]:
    """Protect a run's files from `clean` until the block ends. If `clean` is removing them, wait."""
    if not run.is_dir():  # only its artifacts are there
        yield
        return
    with _opened(run) as folder:
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(folder, fcntl.LOCK_SH)
        yield


@contextmanager
def removing(run: Path) -> Iterator[bool]:
    """Keep drivers and services from using a run until the block ends. Yield False if one is using it."""
    if not run.is_dir():
        yield True
        return
    with _opened(run) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a filesystem without locks
            pass
        yield True


def is_at_work(run: Path) -> bool:
    """Check whether a driver or a service is using a run, as far as the filesystem has locks."""
    with removing(run) as alone:
        return not alone


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder to lock it. Drivers and services share the lock. The command that removes has it alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class RunFolder:
    """The files of one experiment's run for people, made from the artifacts in the store."""

    def __init__(self, experiment: Experiment, store: Store) -> None:
        self._experiment, self._store = experiment, store
        self.path = experiment.run
        self.page, self._metrics = self.path / REPORT, self.path / METRICS

    def write_plan(self) -> None:
        """Write config.yaml and plan.txt as they are before the run."""
        self.path.mkdir(parents=True, exist_ok=True)
        config = yaml_text(self._experiment.tree)
        (self.path / CONFIG).write_text(config)
        if self._experiment.file is not None:
            (self.path / FROM).write_text(f"{keep_file(self._experiment.file, self.path)}\n")
        (self.path / PLAN).write_text(plan_text(self._experiment.wanted, self._store) + "\n")

    def link(self) -> None:
        """Link to the finished artifacts, numbered in order."""
        for old in self.path.iterdir():
            if old.is_symlink():
                old.unlink(missing_ok=True)
        for number, node in enumerate(graph(self._experiment.wanted)):
            if self._store.is_done(node):
                link = self.path / f"{number:02d}-{node.label.replace(' ', '-').replace('/', '-')}"
                with suppress(FileExistsError):  # another driver of the same run was quicker
                    link.symlink_to(os.path.relpath(self._store.path(node), self.path.resolve()))

    def finished_steps(self) -> list[tuple[Step, Json]]:
        """Return the finished steps with their records."""
        return finished_steps(self._experiment.wanted, self._store)

    def metrics(self) -> Json:
        """Return the metrics of the artifacts in the store.

        If `metrics.json` says the same of them, return its content, which also knows what the last run executed.
        """
        metrics = self._computed(set())
        return written if (written := self._written(metrics)) is not None else metrics

    def write_report(self, executed: Collection[str], *, anew: bool = False) -> Json:
        """Write metrics.json and report.html, and return the metrics.

        A page that is up to date is written again only if `anew` is set. `executed` are the fingerprints of the steps
        that ran just now.
        """
        metrics, outcome = self._computed(executed), self._experiment.outcome
        if not executed and not anew and self._written(metrics) is not None:
            write_json(self._metrics, metrics)
            return metrics
        return report.write(
            self.path,
            title=self._experiment.name,
            wanted=self._experiment.wanted,
            results=outcome.results,
            systems=outcome.rows,
            store=self._store,
            executed=executed,
            config=self._experiment.tree,
            note=outcome.note,
            costs=outcome.costs,
            expected=self._experiment.expected,
            unmeasured=outcome.unmeasured,
            needs=outcome.needs,
            interim=outcome.interim,
        )

    def _computed(self, executed: Collection[str]) -> Json:
        """Compute what metrics.json should hold."""
        outcome = self._experiment.outcome
        return metrics_of(
            outcome.results,
            self.finished_steps(),
            self._store,
            executed,
            outcome.rows,
            outcome.costs,
            self._experiment.expected,
            outcome.unmeasured,
            outcome.needs,
            outcome.interim,
        )

    def _written(self, metrics: Json) -> Json | None:
        """Read metrics.json, or return None if it or the page is about other artifacts than these metrics.

        The config may have changed since they were written.
        """
        if not self.page.exists() or not self._metrics.exists():
            return None
        try:
            written: Json = json.loads(self._metrics.read_text())
        except ValueError:  # damaged: it is written again, as all of this folder can be
            return None
        return written if _without_executed(written) == _without_executed(metrics) else None


def _without_executed(metrics: Json) -> Json:
    return {**metrics, "steps": [{**step, "executed": None} for step in metrics["steps"]]}
