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
    """An experiment with its display name and the store of its artifacts."""

    name: str
    experiment: Experiment
    store: Store

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(self.experiment, self.store)


def read_runs(paths: Sequence[Path], runs: Path, root: str) -> list[Run]:
    """Read runs by their folders or configs.

    A folder's links name the store that it was made in. A config's store is at `root`. Runs are called by their
    folders, or by their paths if folders share a name. UserError for a path that is neither.
    """
    read = [_read(path, runs, root) for path in paths]
    names = [run.name for run in read]
    return [
        replace(run, name=str(path)) if names.count(run.name) > 1 else run
        for run, path in zip(read, paths, strict=True)
    ]


def _read(path: Path, runs: Path, root: str) -> Run:
    if not path.is_dir():
        experiment, place = loading.read(path, [], runs, root), root
    elif (path / CONFIG).exists():
        experiment = loading.read(path, [], runs)
        place = next((str(link.resolve().parent) for link in sorted(path.iterdir()) if (link / RECORD).exists()), root)
    else:
        raise UserError(f"{path}: it has no {CONFIG}; accepted: the folder of a run, such as runs/demo, or a config")
    store = object_store.open_store(place)
    store.prefetch_records(graph(experiment.wanted))
    return Run(experiment.run.name, experiment, store)
