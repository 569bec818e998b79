"""What `run` says of its time before it begins and afterwards, and the file that keeps an estimate for it."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.components.files import write_json
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import site
from sparring.workflows.estimating.estimate import estimate
from sparring.workflows.quantities import about, size
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.stages.experiments import Experiment
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

ESTIMATE = "estimate.json"
"""In a run's folder: seconds of each step that was to run."""


def foresee(experiment: Experiment, waiting: list[Step], store: Store, cluster: Cluster) -> Forecast | None:
    """Say on stderr how long the waiting steps may take: as `plan --estimate` found on this machine with this profile,
    else by rates that take no trial. None where nothing waits, or nothing is known."""
    if not waiting:
        return None
    kept = _kept(experiment.run, cluster, waiting)
    if kept is not None:
        seconds, whole = kept
        print(f"estimate: {about(whole)} for {len(waiting)} steps (plan --estimate)", file=sys.stderr)
    else:
        here = site(cluster, store.root)
        try:
            names = {node.fingerprint for node in waiting}
            found = estimate(graph(experiment.wanted), names, here, store, assumed={}, quick=True)
        except Exception as error:  # whatever it is, it must not keep a run from beginning
            print(f"estimate: none ({type(error).__name__}: {error})", file=sys.stderr)
            return None
        seconds, whole = {row.node.name: row.seconds for row in found.waiting}, found.seconds
        rough = "a rough guess; `plan --estimate` tries a few batches"
        unknown = f", without {len(found.unknown)} steps of unknown cost" if found.unknown else ""
        money = found.money(found.seconds)
        price = "" if money is None else f", {money:,.2f} in money"
        print(f"estimate: {about(found.seconds)} for {len(waiting)} steps{unknown}, {size(found.disk)} of disk, "
              f"{size(found.memory)} of memory{price} ({rough})", file=sys.stderr)  # fmt: skip
        for problem in found.problems:
            print(f"estimate: may not fit: {problem}", file=sys.stderr)
        for warning in found.warnings:
            print(f"estimate: slow: {warning}", file=sys.stderr)
        write_estimate(experiment.run, cluster, seconds, whole, tried=False)
    return Forecast(seconds, at_once=cluster.parallel_steps, whole=whole)


def how_far_off(estimated: float, took: float) -> str:
    """What was estimated, beside what a run took."""
    off = took / estimated - 1 if estimated else 0.0
    word = "as estimated" if abs(off) < 0.005 else f"{abs(off):.0%} {'longer' if off > 0 else 'less'} than estimated"
    return f"estimated {estimated:,.0f} s, took {took:,.0f} s: {word}"


def write_estimate(
    run: Path, cluster: Cluster, seconds: Mapping[str, float], whole: float, *, tried: bool = True
) -> None:
    """Keep the seconds of steps, by their artifacts' names, and of the whole run, with the machine and the profile that
    they hold for."""
    run.mkdir(parents=True, exist_ok=True)
    kept = {"host": socket.gethostname(), "cluster": cluster.model_dump(mode="json"), "tried": tried, "whole": whole}
    write_json(run / ESTIMATE, {**kept, "seconds": {name: round(value, 2) for name, value in seconds.items()}})


def read_estimate(run: Path) -> tuple[dict[str, float], int]:
    """The seconds in a run's folder, empty where there are none, and how many steps run at once."""
    kept = _read(run)
    return ({}, 1) if kept is None else (kept["seconds"], kept["cluster"]["parallel_steps"])


def _read(run: Path) -> Any:
    try:
        return json.loads((run / ESTIMATE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _kept(run: Path, cluster: Cluster, waiting: list[Step]) -> tuple[dict[str, float], float] | None:
    """The seconds of the waiting steps and of the run, if models were tried for all of them on this machine with this
    profile. Of a part of the steps the run takes that part of the time."""
    if (kept := _read(run)) is None:
        return None
    here = (kept["host"], kept["cluster"]) == (socket.gethostname(), cluster.model_dump(mode="json"))
    seconds = {node.name: kept["seconds"][node.name] for node in waiting if node.name in kept["seconds"]}
    if not (kept["tried"] and here and len(seconds) == len(waiting)):
        return None
    total = sum(kept["seconds"].values())
    return seconds, kept.get("whole", total) * (sum(seconds.values()) / total if total else 1.0)
