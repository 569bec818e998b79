"""A service: the systems of a run, or the system of an exported folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.components.config import UserError, did_you_mean, listing
from sparring.components.data.tables import QUERIES, RANKING, read
from sparring.components.systems import config as configs
from sparring.components.systems.documents import Documents
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.metrics import Metrics
from sparring.workflows.serving.running import identity, identity_of_folder
from sparring.workflows.store import object_store
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable, library
from sparring.workflows.systems.rows import Outcome

EXAMPLES, EXAMPLE_CHARACTERS = 5, 100
"""Number of queries that the page proposes, and the length of the longest."""
LOW, FEWEST = 0.05, 20
"""The share of queries whose best scores are called low, and the fewest queries that tell."""


class Checked(NamedTuple):
    """Description of a service before anything is opened."""

    systems: list[str]
    default: str
    left_out: Mapping[str, str]
    identity: str
    """Identity of the served systems. Equal for equal files."""
    folder: Path
    """Folder of the service's file and its marks."""
    moment: str = ""
    """Moment of an unfinished run whose verdict chose the default system."""


@dataclass(frozen=True)
class Served:
    """Description from which any process can open the service."""

    config: Path
    """An experiment, or the folder of a system."""
    assignments: list[str]
    runs: Path
    store: str
    names: list[str]
    """The systems that are wanted, the default first; empty for all."""
    threads: int
    models: Mapping[str, Any]
    """The other options of `Inference`."""

    def check(self) -> Checked:
        """Check that everything is there. UserError names what is missing."""
        if loading.is_system(self.config):
            return self._check_folder()
        experiment, store, plans, reasons = self._plans()
        if self.names:
            default = self.names[0]
        else:
            row = deployable.asked(experiment.outcome, store)
            default = row.name if row is not None and row.name in plans else list(plans)[-1]
        interim = experiment.outcome.newest(store).interim
        moment = "" if interim is None else interim.moment
        return Checked(list(plans), default, reasons, identity(experiment, self.store), experiment.run, moment)

    def open(self) -> Answering:
        """Open all models and indexes. This takes seconds, and memory until the process ends."""
        checked, metrics = self.check(), Metrics()
        opened, documents, summary = self._open_folder() if loading.is_system(self.config) else self._open_run()
        return Answering(opened, documents, checked.default, checked.left_out, metrics, summary)

    def _open_run(self) -> tuple[dict[str, LoadedSystem], Documents, Summary]:
        experiment, store, plans, _ = self._plans()
        opened = library.Library(store, threads=self.threads, models=lambda: self.models, resident=True)
        systems = {name: opened.system(plan) for name, plan in plans.items()}
        return systems, opened.documents(experiment.outcome.data), summarise(experiment, store, plans)

    def _open_folder(self) -> tuple[dict[str, LoadedSystem], Documents, Summary]:
        system = LoadedSystem.load(self.config, threads=self.threads, models=lambda: self.models)
        return {system.config.name: system}, system.documents, Summary(system.config.name)

    def _plans(self) -> tuple[Experiment, Store, dict[str, library.Plan], dict[str, str]]:
        experiment = loading.read(self.config, list(self.assignments), self.runs, self.store)
        store = object_store.open_store(self.store)
        store.prefetch_records(graph(experiment.wanted))
        plans, reasons = library.of_run(experiment.outcome, store)
        for name in self.names:
            if name not in plans:
                reason = f": {reasons[name]}" if name in reasons else ""
                accepted = f"{listing(plans)}{did_you_mean(name, plans)}"
                raise UserError(f"--system: no system {name!r} can be asked{reason}; accepted: {accepted}")
        if self.names:
            plans = {name: plans[name] for name in self.names}
        return experiment, store, plans, reasons

    def _check_folder(self) -> Checked:
        for key, value in {"--set": self.assignments, "--system": self.names}.items():
            if value:
                raise UserError(f"{key}: an exported system is as its system.json says; accepted: with a config")
        name = configs.read(self.config).name
        return Checked([name], name, {}, identity_of_folder(self.config), self.config)


def summarise(experiment: Experiment, store: Store, names: Collection[str]) -> Summary:
    """Summarise a run: its collection, queries to begin with, and low scores of the systems of these names."""
    outcome = experiment.outcome
    store.fetch([outcome.data], "queries.parquet")
    path, filters = store.path(outcome.data) / "queries.parquet", [("split", "=", outcome.split)]
    queries = read(path, QUERIES, columns=["text"], filters=filters)["text"].to_pylist()
    texts = (text for text in queries if len(text) <= EXAMPLE_CHARACTERS)
    return Summary(
        experiment.name,
        next((row.collection for row in outcome.ranked.values()), ""),
        list(islice(texts, EXAMPLES)),
        {name: score for name in names if (score := low_score(outcome, store, name)) is not None},
    )


def low_score(outcome: Outcome, store: Store, name: str) -> float | None:
    """Return the score below which a system's best score is low: 95 % of the dev queries had a higher one. None if the
    run did not choose between this system and others, or by too few queries."""
    selection, row = outcome.results.inputs.get("selection"), outcome.ranked.get(name)
    entries = selection.inputs["systems"] if isinstance(selection, Step) else []
    for entry in entries:
        if row is not None and (entry["system"], entry["seed"]) == (name, row.seed) and store.is_done(entry["ranking"]):
            store.fetch([entry["ranking"]], "ranking.parquet")
            path = store.path(entry["ranking"]) / "ranking.parquet"
            best = read(path, RANKING, columns=["score"], filters=[("rank", "=", 1)])["score"].to_numpy()
            return float(np.quantile(best, LOW)) if len(best) >= FEWEST else None
    return None
