"""Runs that are compared: each by the folder that it left, or by its config."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import CONFIG, Experiment
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store import object_store
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import RECORD, Store


@dataclass(frozen=True)
class Run:
    """An experiment, what a reader calls it, and the store that has its artifacts."""

    name: str
    experiment: Experiment
    store: Store

    @property
    def folder(self) -> RunFolder:
        """Its folder."""
        return RunFolder(self.experiment, self.store)


def read_runs(paths: Sequence[Path], runs: Path, root: str) -> list[Run]:
    """Runs by their folders or configs. A folder's links say which store it was made in; a config's is at `root`.

    They are called by their folders, and by their paths where several have the same. UserError for what is neither.
    """
    made = [_read(path, runs, root) for path in paths]
    names = [one.name for one in made]
    return [
        replace(one, name=str(path)) if names.count(one.name) > 1 else one
        for one, path in zip(made, paths, strict=True)
    ]


def _read(path: Path, runs: Path, root: str) -> Run:
    if not path.is_dir():
        experiment, place = loading.read(path, [], runs, root), root
    elif (path / CONFIG).exists():
        experiment = loading.read(path, [], runs)
        place = next((str(one.resolve().parent) for one in sorted(path.iterdir()) if (one / RECORD).exists()), root)
    else:
        raise UserError(f"{path}: it has no {CONFIG}; accepted: the folder of a run, such as runs/demo, or a config")
    store = object_store.open_store(place)
    store.prefetch_records(graph(experiment.wanted))
    return Run(experiment.run.name, experiment, store)
