"""What notebooks and services import: run an experiment, read its results, search with a system."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparring.components.config import UserError
from sparring.components.evaluation import result_table
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.command_line import parser
from sparring.workflows.commands import shared_arguments
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.experiments import loading
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.report.verdict import Verdict
from sparring.workflows.store.availability import NotMade
from sparring.workflows.systems import deployable, library

Place = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The results of an experiment."""

    config: Path
    """The experiment's file."""
    folder: Path
    """Where config.yaml, plan.txt, metrics.json, report.html and links to the artifacts are."""
    report: Path
    """The report, a page for browsers."""
    metrics: dict[str, Any]
    """All results, as metrics.json has them: `rows`, `comparisons`, `steps`."""
    _words: tuple[str, ...] = ()
    """Arguments of the command line that name the experiment and its places."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict: the system to deploy, its quality, and the comparison behind it. Print it to read it in words.
        None if the experiment compares nothing."""
        return None if self.metrics["verdict"] is None else Verdict.read(self.metrics["verdict"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The measured values: system, round, collection, split, seed, measure, value and queries of each."""
        return list(self.metrics["rows"])

    @property
    def table(self) -> str:
        """The results as the command line prints them."""
        return result_table.table(self.metrics)

    def load(self, system: str | None = None, **options: Any) -> LoadedSystem:
        """Load a system of this run, by its name in the table; without a name the one that the run chose. Options are
        those of `sparring.load`."""
        return _load_from_run(self._words, system, **options)

    def __str__(self) -> str:
        return self.table


def run(
    config: Place,
    *,
    sets: Mapping[str, Any] | None = None,
    cluster: Place | None = None,
    store: Place | None = None,
    runs: Place = "runs",
) -> Run:
    """Run an experiment, or resume it, and return its results. Finished steps are not repeated.

    `config` is the experiment's file. `sets` changes values of it: `{"rounds": 3}`. `cluster` is a profile of what to
    run on, `store` and `runs` are places, as `sparring run --help` has them. Progress is printed.

    UserError for a mistake in the config or the data, StepFailed if a step fails.
    """
    words = _words(config, sets, store, runs)
    ray = sys.modules.get("ray")
    joined = ray is not None and ray.is_initialized()  # a session of the caller's, which outlives this run
    try:
        _call("run", words, *([] if cluster is None else ["--cluster", str(cluster)]))
    finally:
        if not joined:
            shared_arguments.leave()
    return read(config, sets=sets, store=store, runs=runs)


def read(
    config: Place, *, sets: Mapping[str, Any] | None = None, store: Place | None = None, runs: Place = "runs"
) -> Run:
    """Read the results of an experiment that was run. UserError if there are none yet.

    An unfinished run of `adapt` has those of its newest early verdict, which `Run.verdict.moment` names.
    """
    words = _words(config, sets, store, runs)
    arguments = parser().parse_args(_placed("show", words))
    experiment, opened_store = shared_arguments.opened(arguments)
    experiment = experiment.newest(opened_store)
    if not opened_store.is_done(experiment.outcome.results):
        raise UserError(f"{config}: its run is not finished. Run it first: sparring.run({str(config)!r}).")
    folder = RunFolder(experiment, opened_store)
    return Run(
        config=Path(config), folder=folder.path, report=folder.page, metrics=folder.metrics(), _words=tuple(words)
    )


def load(
    place: Place,
    *,
    system: str | None = None,
    threads: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    sets: Mapping[str, Any] | None = None,
    store: Place | None = None,
    runs: Place = "runs",
) -> LoadedSystem:
    """Load a system to search with, from any thread.

    `place` is the folder that `sparring export` wrote (its subfolder `system`), or the config of a finished run, of
    which `system` may name another row of the table than the chosen one. If `threads` is None, all cores are used.

    UserError if the place holds no system, or if a part of the system is missing or damaged.
    """
    if not loading.is_system(Path(place)):
        return _load_from_run(tuple(_words(place, sets, store, runs)), system, threads=threads, device=device)
    if system is not None or sets:
        raise UserError(f"{place}: an exported system searches as its system.json says. Leave out `system` and `sets`.")
    return LoadedSystem.load(Path(place), threads=_threads(threads), models=lambda: _models(device))


def _load_from_run(
    words: tuple[str, ...],
    name: str | None,
    *,
    threads: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> LoadedSystem:
    experiment, store = shared_arguments.opened(parser().parse_args(_placed("show", list(words))))
    outcome = experiment.outcome
    try:
        row = deployable.asked(outcome, store) if name is None else deployable.chosen(outcome, name)
        plan = library.last(outcome, store) if row is None else library.measured(row, store)
    except NotMade as error:
        raise UserError(f"{error}. Run it first: sparring.run({words[-1]!r}).") from None
    opened = library.Library(store, threads=_threads(threads), models=lambda: _models(device), resident=True)
    return opened.system(plan)


def _threads(threads: int | None) -> int:
    return cores() if threads is None else threads


def _models(device: Literal["auto", "cpu", "cuda"]) -> dict[str, Any]:
    """How models compute, in this process."""
    machine = resolve_machine(Cluster(mode="inline", device=device))
    return {"cuda": machine.cuda, "batch_tokens": machine.batch_tokens}


def _words(config: Place, sets: Mapping[str, Any] | None, store: Place | None, runs: Place) -> list[str]:
    """An experiment and its places as arguments of the command line; the config comes last."""
    words = ["--runs", str(runs), *([] if store is None else ["--store", str(store)])]
    words += [word for key, value in (sets or {}).items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return [*words, str(config)]


def _placed(command: str, words: list[str], *more: str) -> list[str]:
    """The command line of a command: places stand before it, the rest behind."""
    places = 4 if "--store" in words[:4] else 2
    return [*words[:places], command, *words[places:], *more]


def _call(command: str, words: list[str], *more: str) -> None:
    arguments = parser().parse_args(_placed(command, words, *more))
    arguments.call(arguments)
