"""What `run` says of its time before it begins and afterwards, and the file that keeps an estimate for it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from sparring.components.files import write_json
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import site
from sparring.workflows.estimating.estimate import Estimate, Spread, estimate
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.quantities import between, duration, size
from sparring.workflows.running.forecast import EXACT, Forecast
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

ESTIMATE = "estimate.json"
"""In a run's folder: seconds of each step that was to run."""

NARROWS = "  The range narrows as steps finish. `plan --estimate` tries a few batches."
"""What is to be known of an estimate for which nothing was tried."""


def foresee(experiment: Experiment, waiting: list[Step], store: Store, cluster: Cluster) -> Forecast | None:
    """Say on stderr how long the waiting steps may take: as `plan --estimate` found on this machine with this profile,
    else by rates that take no trial. None where nothing waits, or nothing is known."""
    if not waiting:
        return None
    kept = _kept(experiment.run, cluster, waiting)
    if kept is not None:
        seconds, whole, spread = kept
        said = between(*(factor * whole for factor in spread))
        print(f"estimate: {said} for {len(waiting)} steps (plan --estimate)", file=sys.stderr)
    else:
        here = site(cluster, store.root)
        try:
            names = {node.fingerprint for node in waiting}
            found = estimate(graph(experiment.wanted), names, here, store, assumed={}, quick=True)
        except Exception as error:  # whatever it is, it must not keep a run from beginning
            print(f"estimate: none ({type(error).__name__}: {error})", file=sys.stderr)
            return None
        seconds, whole, spread = seconds_of(found), found.seconds, found.spread
        unknown = f", without {len(found.unknown)} steps of unknown cost" if found.unknown else ""
        money = [found.money(seconds) for seconds in found.between]
        price = "" if None in money else f", {money[0]:,.2f} to {money[1]:,.2f} in money"
        print(
            f"estimate: {between(*found.between)} for {len(waiting)} steps{unknown}, {size(found.disk)} of disk, "
            f"{size(found.memory)} of memory{price}\n{NARROWS}",
            file=sys.stderr,
        )
        for problem in found.problems:
            print(f"estimate: may not fit: {problem}", file=sys.stderr)
        for warning in found.warnings:
            print(f"estimate: slow: {warning}", file=sys.stderr)
        write_estimate(experiment.run, cluster, found, tried=False)
    return Forecast(seconds, at_once=cluster.parallel_steps, whole=whole, spread=spread)


def how_far_off(expected: Forecast, took: float) -> str:
    """What was estimated before the run, beside what it took."""
    least, most = (factor * expected.whole for factor in expected.spread)
    word = "less than" if took < least else "longer than" if took > most else "as"
    return f"estimated {between(least, most)}, took {duration(took)}: {word} estimated"


def seconds_of(found: Estimate) -> dict[str, float]:
    """The seconds of each step that is to run, by its artifact's name."""
    return {row.node.name: round(row.seconds, 2) for row in found.waiting}


def write_estimate(run: Path, cluster: Cluster, found: Estimate, *, tried: bool) -> None:
    """Keep the seconds of steps and of the whole run, and how sure they are, with the machine and the profile that they
    hold for."""
    run.mkdir(parents=True, exist_ok=True)
    here = {"host": socket.gethostname(), "cluster": cluster.model_dump(mode="json"), "tried": tried}
    write_json(run / ESTIMATE, {**here, "whole": found.seconds, "spread": found.spread, "seconds": seconds_of(found)})


def read_estimate(run: Path) -> tuple[dict[str, float], int, Spread]:
    """The seconds in a run's folder, empty where there are none, how many steps run at once, and the spread."""
    kept = _read(run)
    return ({}, 1, EXACT) if kept is None else (kept["seconds"], kept["cluster"]["parallel_steps"], _spread(kept))


def _spread(kept: Any) -> Spread:
    """How sure an estimate is; those of earlier versions do not say."""
    least, most = kept.get("spread", EXACT)
    return least, most


def _read(run: Path) -> Any:
    try:
        return json.loads((run / ESTIMATE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _kept(run: Path, cluster: Cluster, waiting: list[Step]) -> tuple[dict[str, float], float, Spread] | None:
    """The seconds of the waiting steps and of the run, and how sure they are, if models were tried for all of them on
    this machine with this profile. Of a part of the steps the run takes that part of the time."""
    if (kept := _read(run)) is None:
        return None
    here = (kept["host"], kept["cluster"]) == (socket.gethostname(), cluster.model_dump(mode="json"))
    seconds = {node.name: kept["seconds"][node.name] for node in waiting if node.name in kept["seconds"]}
    if not (kept["tried"] and here and len(seconds) == len(waiting)):
        return None
    total = sum(kept["seconds"].values())
    whole = kept.get("whole", total) * (sum(seconds.values()) / total if total else 1.0)
    return seconds, whole, _spread(kept)
