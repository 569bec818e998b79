"""What a run measures, handed on to TensorBoard, MLflow or Weights & Biases while it runs.

All of it is read from the files of the steps, from outside: what is handed on changes neither a result nor an identity,
and whatever computed a step need not know. `tracked.json` in the run's folder says how far it went, so that a run that
goes on hands on what is new.
"""

import importlib
import importlib.util
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from components.config import UserError
from components.files import write_json
from components.plots import charts
from workflows.cluster import Cluster
from workflows.progress import read

STATE = "tracked.json"
LATENCY = 2.0
"""Seconds between two looks at the files of a step."""
PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}

Values = dict[str, float]


class Sink(Protocol):
    """Where values go."""

    def send(self, series: str, values: Values, step: int) -> None:
        """Values of a training (or a trial, or a system) at a step."""

    def close(self) -> None:
        """Nothing more comes."""


class Tracker:
    """The profile's sinks for one run; opened when there is something to send."""

    def __init__(self, run: Path, kinds: list[str]) -> None:
        for kind in kinds:
            if not installed(PACKAGES[kind]):
                raise UserError(
                    f"cluster: track: {kind} is not installed; accepted: leave it out, or `pip install {kind}` first"
                )
        self._run, self._kinds = run, kinds
        self._lock = threading.Lock()
        self._sinks: list[Sink] | None = None
        self._state: dict[str, Any] = {"sent": {}, "ids": {}}

    def _open(self) -> list[Sink]:
        if self._sinks is None:
            path = self._run / STATE
            if path.exists():
                self._state = json.loads(path.read_text())
            makers: dict[str, Callable[[Path, dict[str, str]], Sink]] = {
                "tensorboard": _TensorBoard,
                "mlflow": _MLflow,
                "wandb": _WandB,
            }
            self._sinks = [makers[kind](self._run, self._state["ids"]) for kind in self._kinds]
        return self._sinks

    def send(self, series: str, values: Values, step: int) -> None:
        """Hand on some values, unless they were already."""
        with self._lock:
            if self._kinds and step > self._sent(series):
                self._send(series, values, step)
                self._keep()

    def training(self, series: str, out: Path) -> None:
        """Hand on what a training has logged since the last time."""
        with self._lock:
            path = out / "metrics.jsonl"
            lines = list(_lines(path)) if self._kinds and path.exists() else []
            new = [line for line in lines if line["step"] > self._sent(series)]
            before = {line["step"]: line for line in lines if "seconds" in line}
            for line in new:
                self._send(series, _values(line, before), line["step"])
            if new:
                self._keep()

    def measures(self, rows: Sequence[dict[str, Any]]) -> None:
        """Hand on what was measured round by round; of systems without rounds, at step 0."""
        found: dict[tuple[str, int], Values] = {}
        for chart in charts(rows):
            for name, curve in chart.curves.items():
                for point in curve:
                    found.setdefault((name, point.round), {})[chart.measure] = point.value
            for name, value in chart.levels.items():
                found.setdefault((name, 0), {})[chart.measure] = value
        for (name, step), values in sorted(found.items()):
            self.send(f"measures/{name}", values, step)

    def _sent(self, series: str) -> int:
        self._open()
        return int(self._state["sent"].get(series, -1))

    def _send(self, series: str, values: Values, step: int) -> None:
        for sink in list(self._open()):
            try:
                sink.send(series, values, step)
            except Exception as error:  # whatever a service has against it, the run goes on
                print(f"{type(sink).__name__.strip('_')}: {error}; no more is sent there", file=sys.stderr, flush=True)
                self._open().remove(sink)
        self._state["sent"][series] = step

    def _keep(self) -> None:
        write_json(self._run / STATE, self._state)

    def close(self) -> None:
        """Nothing more comes."""
        for sink in self._sinks or []:
            sink.close()


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def plain(name: str) -> str:
    """A name of letters that TensorBoard and MLflow take: `RR@10` is `RR_10` there."""
    return re.sub(r"[^\w\-./:]+", "_", name).strip("_")


@contextmanager
def tracking(run: Path, cluster: Cluster) -> Iterator[Tracker]:
    """What hands on a run's values, as the profile says; UserError where something that it names is not there."""
    tracker = Tracker(run, list(cluster.track))
    try:
        yield tracker
    finally:
        tracker.close()


@contextmanager
def followed(tracker: Tracker | None, series: str, out: Path) -> Iterator[None]:
    """Hand on what a step writes while it runs: its losses, its progress and its throughput."""
    if tracker is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(tracker, series, out, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        tracker.training(series, out)


def _follow(tracker: Tracker, series: str, out: Path, stop: threading.Event) -> None:
    while not stop.wait(LATENCY):
        if (out / "metrics.jsonl").exists():
            tracker.training(series, out)
        elif (state := read(out)) is not None and state["seconds"]:
            unit, here = state["unit"], state["done"] - state["first"]
            values = {f"{unit}_per_second": here / state["seconds"], "seconds": state["seconds"]}
            tracker.send(series, values, state["done"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a training's log."""
    with path.open() as file:
        for line in file:
            if line.endswith("}\n"):
                yield json.loads(line)


KNOWN = {"step", "learning_rate", "gradient_norm", "seconds"}


def _values(line: dict[str, Any], lines: dict[int, dict[str, Any]]) -> Values:
    """A line of a training's log with names for charts; steps a second since the line before."""
    found = {}
    for name, value in line.items():
        if name in ("learning_rate", "gradient_norm") or name.startswith("dev "):
            found[name.replace(" ", "/")] = float(value)
        elif name not in KNOWN:
            found[f"loss/{name}"] = float(value)
    if "seconds" in line:
        last = max((step for step in lines if step < line["step"]), default=0)
        seconds = line["seconds"] - (lines[last]["seconds"] if last else 0.0)
        if seconds > 0:
            found["steps_per_second"] = (line["step"] - last) / seconds
    return found


class _TensorBoard:
    """A folder of event files for each series, in `<run>/tensorboard`."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._folder = run / "tensorboard"
        self._writers: dict[str, Any] = {}

    def send(self, series: str, values: Values, step: int) -> None:
        if series not in self._writers:
            from tensorboardX import SummaryWriter

            self._writers[series] = SummaryWriter(str(self._folder / series), write_to_disk=True)
        for name, value in values.items():
            self._writers[series].add_scalar(plain(name), value, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _MLflow:
    """A run of MLflow's in the experiment `sparring`, wherever MLflow is told to keep it (MLFLOW_TRACKING_URI)."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._mlflow.set_experiment("sparring")
        begun = self._mlflow.start_run(run_id=ids.get("mlflow"), run_name=run.name)
        ids["mlflow"] = begun.info.run_id

    def send(self, series: str, values: Values, step: int) -> None:
        self._mlflow.log_metrics({f"{plain(series)}/{plain(name)}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class _WandB:
    """A run of Weights & Biases' in the project `sparring`; each series has its own axis of steps."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self._wandb = importlib.import_module("wandb")
        self._seen: set[str] = set()
        begun = self._wandb.init(
            project="sparring", name=run.name, dir=str(run), id=ids.get("wandb"), resume="allow"
        )  # fmt: skip
        ids["wandb"] = begun.id

    def send(self, series: str, values: Values, step: int) -> None:
        if series not in self._seen:
            self._wandb.define_metric(f"{series}/*", step_metric=f"{series}/step")
            self._seen.add(series)
        self._wandb.log({f"{series}/step": step, **{f"{series}/{name}": value for name, value in values.items()}})

    def close(self) -> None:
        self._wandb.finish()
