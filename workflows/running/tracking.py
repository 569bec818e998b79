"""Sends what a run measures to TensorBoard, MLflow or Weights & Biases while it runs.

All values are read from the files that steps write, so tracking changes neither results nor identities, and no step
knows of it. `tracked.json` in the run's folder records the experiment and the values that were sent. A resumed run
sends only new values. After the config was edited, all values are sent again.
"""

import importlib
import importlib.util
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from sparring.components.charts.line_chart import charts
from sparring.components.config import UserError
from sparring.components.files import remove, write_json
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.program import without_passwords
from sparring.workflows.running.polling import repeated
from sparring.workflows.store.dag import Step
from sparring.workflows.store.progress import read_progress
from sparring.workflows.store.store import Store

STATE, TENSORBOARD = "tracked.json", "tensorboard"
PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
"""The package of each sink that a profile's `track` names."""
POLL_SECONDS = 2.0
"""Seconds between two readings of a running step's files."""

Values = dict[str, float]


class Sink(Protocol):
    """A service or folder that keeps values."""

    def send(self, series: str, values: Values, step: int) -> None:
        """Keep values of a series (a training, a trial, a system) at a `step` of its axis: an update, a round."""

    def close(self) -> None:
        """End the run. Nothing is sent afterwards."""


class Tracker:
    """The cluster profile's sinks for one run. They are opened when there is something to send."""

    def __init__(self, run: Path, kinds: list[str], identity: str) -> None:
        self._run, self._kinds, self._identity = run, kinds, identity
        self._lock = threading.Lock()
        self._sinks: list[Sink] | None = None

    @cached_property
    def _state(self) -> dict[str, Any]:
        """Contents of `tracked.json`: the number of lines sent of each training's log, the last step sent of each other
        series, and this run's ids in the services. The state of another experiment in this folder is discarded."""
        path = self._run / STATE
        state: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):  # damaged: all is sent again
            state = json.loads(path.read_text())
        if state.get("identity") != self._identity:
            remove(self._run, TENSORBOARD)
            state = {"identity": self._identity, "lines": {}, "steps": {}, "ids": {}}
        return state

    def _open(self) -> list[Sink]:
        if self._sinks is None:
            makers: dict[str, Callable[[Path, dict[str, str]], Sink]] = {
                "tensorboard": _TensorBoard,
                "mlflow": _MLflow,
                "wandb": _WandB,
            }
            self._sinks = [makers[kind](self._run, self._state["ids"]) for kind in self._kinds]
        return self._sinks

    def send(self, series: str, values: Values, step: int) -> None:
        """Send values, unless those of this step were sent before."""
        with self._lock:
            if self._kinds and step > self._state["steps"].get(series, -1):
                self._send(series, values, step)
                self._state["steps"][series] = step
                self._save()

    def send_training(self, series: str, out: Path) -> None:
        """Send what a training has logged since the last call. A resumed training logs the same lines again."""
        with self._lock:
            path = out / "metrics.jsonl"
            lines = list(_lines(path)) if self._kinds and path.exists() else []
            sent = self._state["lines"].get(out.name, 0) if lines else 0
            before = {line["update"]: line for line in lines if "seconds" in line}
            for line in lines[sent:]:
                self._send(series, _values(line, before), line["update"])
            if len(lines) > sent:
                self._state["lines"][out.name] = len(lines)
                self._save()

    def send_finished(self, steps: Iterable[Step], store: Store) -> None:
        """Send the logs of finished trainings that were not sent, such as those that other experiments share."""
        trained = [node for node in steps if node.description.models == "training" and store.is_done(node)]
        if self._kinds:
            store.fetch(trained, "metrics.jsonl")
            for node in trained:
                self.send_training(node.label, store.path(node))

    def send_measures(self, rows: Sequence[dict[str, Any]]) -> None:
        """Send the measures of each system by round; of systems without rounds, at step 0."""
        points: dict[tuple[str, int], Values] = {}
        for chart in charts(rows):
            for name, curve in chart.curves.items():
                for point in curve:
                    points.setdefault((name, point.round), {})[chart.measure] = point.value
            for name, value in chart.levels.items():
                points.setdefault((name, 0), {})[chart.measure] = value
        for (name, step), values in sorted(points.items()):
            self.send(f"measures/{name}", values, step)

    def _send(self, series: str, values: Values, step: int) -> None:
        for sink in list(self._open()):
            try:
                sink.send(series, values, step)
            except Exception as error:  # the run does not depend on a service
                name = type(sink).__name__.strip("_")
                message = without_passwords(f"{name}: {error}; nothing more is sent there")
                print(message, file=sys.stderr, flush=True)
                self._open().remove(sink)

    def _save(self) -> None:
        write_json(self._run / STATE, self._state)

    def close(self) -> None:
        """Close the sinks that were opened."""
        for sink in self._sinks or []:
            sink.close()


def metric_name(name: str) -> str:
    """Convert a name to characters that TensorBoard and MLflow accept: `RR@10` becomes `RR_10`."""
    return re.sub(r"[^\w\-./:]+", "_", name).strip("_")


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def check_installed(sinks: Sequence[str]) -> None:
    """Check that each sink of a profile's `track` is installed. UserError if it is not."""
    for name in sinks:
        if not is_installed(PACKAGES[name]):
            raise UserError(
                f"cluster: track: {name} is not installed; accepted: leave it out, or `pip install {name}` first"
            )


@contextmanager
def open_tracker(run: Path, cluster: Cluster, identity: str) -> Iterator[Tracker]:
    """Open the tracker of a run, and close it at the end of the block. UserError if one of the profile's sinks is not
    installed.

    `identity` identifies the experiment. After another experiment in the same folder, all values are sent again.
    """
    check_installed(cluster.track)
    tracker = Tracker(run, list(cluster.track), identity)
    try:
        yield tracker
    finally:
        tracker.close()


@contextmanager
def track_step(tracker: Tracker | None, series: str, out: Path) -> Iterator[None]:
    """Send what a step writes while the block runs: its losses, its progress and its throughput."""
    if tracker is None:
        yield
        return
    try:
        with repeated(POLL_SECONDS, lambda: _send(tracker, series, out)):
            yield
    finally:
        tracker.send_training(series, out)


def _send(tracker: Tracker, series: str, out: Path) -> None:
    if (out / "metrics.jsonl").exists():
        tracker.send_training(series, out)
    elif (state := read_progress(out)) is not None and state["seconds"]:
        unit, done_here = state["unit"], state["done"] - state["first"]
        values = {f"{unit}_per_second": done_here / state["seconds"], "seconds": state["seconds"]}
        tracker.send(series, values, state["done"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return the complete lines of a training's log. The last line may be half written."""
    with path.open() as file:
        for line in file:
            if line.endswith("}\n"):
                yield json.loads(line)


def _values(line: dict[str, Any], lines: dict[int, dict[str, Any]]) -> Values:
    """Return the values of a line of a training's log, with names for charts, and updates a second since the line
    before.
    """
    values = {}
    for name, value in line.items():
        if name in ("learning_rate", "gradient_norm") or name.startswith("dev "):
            values[name.replace(" ", "/")] = float(value)
        elif name not in ("update", "seconds"):
            values[f"loss/{name}"] = float(value)
    if "seconds" in line:
        last = max((step for step in lines if step < line["update"]), default=0)
        seconds = line["seconds"] - (lines[last]["seconds"] if last else 0.0)
        if seconds > 0:
            values["updates_per_second"] = (line["update"] - last) / seconds
    return values


OPEN_SERIES = 8
"""Most series with open TensorBoard files, which have two threads each. It is more than the steps that run at once."""


class _TensorBoard:
    """A folder of event files for each series, in `<run>/tensorboard`."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._folder = run / TENSORBOARD
        self._writers: dict[str, Any] = {}
        self._files = 0

    def send(self, series: str, values: Values, step: int) -> None:
        writer = self._writers.pop(series, None)
        if writer is None:
            from tensorboardX import SummaryWriter

            while len(self._writers) >= OPEN_SERIES:  # the first is the one that was sent to longest ago
                self._writers.pop(next(iter(self._writers))).close()
            self._files += 1  # opened twice in a second, a series has two files, in this order
            place = str(self._folder / series)
            writer = SummaryWriter(place, filename_suffix=f".{self._files:06d}", write_to_disk=True)
        self._writers[series] = writer
        for name, value in values.items():
            writer.add_scalar(metric_name(name), value, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _MLflow:
    """A run in MLflow's experiment `sparring`, where MLflow keeps its runs (MLFLOW_TRACKING_URI)."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_experiment("sparring")
        service_run = self._mlflow.start_run(run_id=ids.get("mlflow"), run_name=run.name)
        ids["mlflow"] = service_run.info.run_id

    def send(self, series: str, values: Values, step: int) -> None:
        metrics = {f"{metric_name(series)}/{metric_name(name)}": value for name, value in values.items()}
        self._mlflow.log_metrics(metrics, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class _WandB:
    """A run in the Weights & Biases project `sparring`; each series has its own axis of steps."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._wandb = importlib.import_module("wandb")
        self._seen: set[str] = set()
        service_run = self._wandb.init(
            project="sparring", name=run.name, dir=str(run), id=ids.get("wandb"), resume="allow"
        )
        ids["wandb"] = service_run.id

    def send(self, series: str, values: Values, step: int) -> None:
        if series not in self._seen:
            self._wandb.define_metric(f"{series}/*", step_metric=f"{series}/step")
            self._seen.add(series)
        self._wandb.log({f"{series}/step": step, **{f"{series}/{name}": value for name, value in values.items()}})

    def close(self) -> None:
        self._wandb.finish()
