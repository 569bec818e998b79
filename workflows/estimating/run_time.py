"""Messages of `run` about its time, before it begins and after it ends, and the file that keeps the estimate."""

import json
import sys
from pathlib import Path

from sparring.components.files import write_json
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.estimating.estimate import Estimate, estimate
from sparring.workflows.estimating.site import site
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.quantities import between, duration, size
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

ESTIMATE = "estimate.json"
"""The file in a run's folder with the seconds of each step that was to run."""


def foresee(experiment: Experiment, waiting: list[Step], store: Store, cluster: Cluster) -> Forecast | None:
    """Print on stderr how long the waiting steps may take. None if nothing waits, or nothing is known."""
    if not waiting:
        return None
    try:
        names = {node.fingerprint for node in waiting}
        nodes, profile_site = graph(experiment.wanted), site(cluster, store.root)
        expected = estimate(nodes, names, profile_site, store, assumed={}, seconds=1.5)
    except Exception as error:  # whatever it is, it must not keep a run from beginning
        print(f"estimate: none ({type(error).__name__}: {error})", file=sys.stderr)
        return None
    unknown = f", without {len(expected.unknown)} steps of unknown work" if expected.unknown else ""
    if expected.requests:
        unknown += f" and without the answers to {sum(expected.requests.values()):,} requests"
    low, high = (expected.money(seconds) for seconds in expected.between)
    price = "" if low is None or high is None else f", {low:,.2f} to {high:,.2f} in money"
    print(
        f"estimate: {between(*expected.between)} for {len(waiting)} steps{unknown}, {size(expected.disk)} of disk, "
        f"{size(expected.memory)} of memory{price}\n  The range narrows as steps finish.",
        file=sys.stderr,
    )
    lines = [f"may not fit: {problem}" for problem in expected.problems]
    for line in [*lines, *(f"slow: {warning}" for warning in expected.warnings)]:
        print(f"estimate: {line}", file=sys.stderr)
    write_estimate(experiment.run, expected)
    return read_estimate(experiment.run)


def how_far_off(expected: Forecast, took: float) -> str:
    """Compare the time that a run took with its estimate."""
    least, most = (factor * expected.whole for factor in expected.spread)
    word = "less than" if took < least else "longer than" if took > most else "as"
    return f"estimated {between(least, most)}, took {duration(took)}: {word} estimated"


def write_estimate(run: Path, expected: Estimate) -> None:
    """Keep the seconds of steps and of the whole run, and their range."""
    run.mkdir(parents=True, exist_ok=True)
    seconds = {row.node.name: round(row.seconds, 2) for row in expected.rows}
    at_once = expected.site.cluster.parallel_steps
    write_json(
        run / ESTIMATE, {"whole": expected.seconds, "spread": expected.spread, "at_once": at_once, "seconds": seconds}
    )


def read_estimate(run: Path) -> Forecast | None:
    """Forecast a run by the estimate in its folder. None if there is none."""
    try:
        kept = json.loads((run / ESTIMATE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    low, high = kept["spread"]
    return Forecast(kept["seconds"], at_once=kept["at_once"], whole=kept["whole"], spread=(low, high))
