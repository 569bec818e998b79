"""Tuning: Ray Tune over a recipe. A trial is the recipe with other numbers, as far as some of its systems' measures.

A trial takes no CPU: in its process runs the driver's loop over steps, and the steps ask Ray for what they need. What
trials have in common is computed once, as the store has one place for it and a lock. All that a tuning knows is in the
store and in `trials.json`, so the same command goes on where it was, and a stopped trial can be finished by `run`.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator

from components.config import Config, UserError, listing, override, parse, read_based
from components.measures import canonical
from components.search_space import Point, Range, assignments, points
from workflows import cluster as clusters
from workflows import nodes, object_store, recipes, trials
from workflows.cluster import SPARE, Cluster, Pool, cores, ray_session
from workflows.dag import Step, graph
from workflows.observe import Tracker, tracking
from workflows.parts import EvaluateConfig
from workflows.progress import glance
from workflows.recipes import Experiment
from workflows.running import run_steps
from workflows.store import StepFailed, Store, execute, todo
from workflows.trials import Book, Trial, said
from workflows.worker_group import dismiss

SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends it as it ends every command
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has nothing to report but that
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # what Tune keeps for itself is not looked at again
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
MEMORY = 4 * 2**30
"""Bytes of memory that one of several trials of a CPU should find."""
LATENCY = {True: 0.5, False: 15.0}
"""Seconds between two looks at the trials, on a terminal and elsewhere."""


class Tuning(Config):
    """What is tuned, by what it is judged, and how it is looked for: the section `tune` of an experiment."""

    measure: str
    """One of `evaluate.measures`; the mean over the seeds."""
    systems: list[str] = Field(min_length=1)
    """Rows of the results: a trial comes to one after another, and is judged by the last. The scheduler may stop it
    after each."""
    split: str = "dev"
    """The split that the trials are measured on: never the one that the experiment's results are for."""
    goal: Literal["max", "min"] = "max"
    """Whether more is better."""
    trials: int = Field(1, ge=1)
    """Draws from the space, beside the config as it is; where it has grids, each with every combination of them."""
    search: Literal["random", "optuna"] = "random"
    """What draws: each trial for itself, or Optuna's TPE, which learns from those that are finished."""
    scheduler: Literal["fifo", "asha"] = "fifo"
    """Whether every trial comes to the last system, or asynchronous successive halving (ASHA; Li et al. 2020) stops
    those that are behind."""
    keep: int = Field(3, ge=2)
    """ASHA: of so many trials that come to a system it lets one go on."""
    seed: int = 0
    """Of the draws."""
    as_it_is: bool = True
    """Whether the config's own numbers are the first trial."""
    space: dict[str, Range] = Field(min_length=1)
    """Dotted keys as `--set` has them, or names of several (`sets`), and what each may be."""

    @field_validator("systems")
    @classmethod
    def _different(cls, systems: list[str]) -> list[str]:
        if len(set(systems)) < len(systems):
            raise ValueError("a system stands twice")
        return systems

    @field_validator("measure")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return canonical(name)
        except UserError as error:
            raise ValueError(str(error)) from None


class Share(Cluster):
    """One of some equal parts of a profile, on a Ray that has room for so many trials at once."""

    _parts: int = PrivateAttr(1)
    _trials: int = PrivateAttr(1)

    @classmethod
    def of(cls, cluster: Cluster, *, parts: int, trials: int) -> "Share":
        """A part; of the threads too, where the profile leaves them to be counted."""
        tree = cluster.model_dump(mode="json")
        if parts > 1 and not cluster.train.threads:
            tree["train"]["threads"] = max(1, cluster.machine() // (cluster.train.workers or 1) // parts)
        share = cls.model_validate(tree)
        share._parts, share._trials = parts, trials
        return share

    def reserved(self) -> int:
        """Logical CPUs of a Ray that is started here that are not for the map over shards of any trial."""
        return 0 if self.address else SPARE + self.steps * (self.train.workers or 1) * self._trials

    def workers(self, pool: Pool, shards: int, *, gpu: bool = False) -> int:
        """How many workers of a pool this part has for the given number of shards."""
        return max(1, min(super().workers(pool, sys.maxsize, gpu=gpu) // self._parts, shards))


@dataclass(frozen=True)
class Tuned:
    """An experiment and its section `tune`, as they were when the command was given."""

    path: Path
    tree: dict[str, Any]
    run: Path
    tuning: Tuning
    _made: dict[str, Experiment] = field(default_factory=dict)

    def experiment(self, point: Point) -> Experiment:
        """The recipe with a point's numbers, measured on the tuning's split."""
        values = {"evaluate.split": self.tuning.split, **assignments(self.tuning.space, point)}
        sets = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        key = json.dumps(sets)
        if key not in self._made:
            self._made[key] = recipes.made(override(self.tree, sets), self.path, self.run)
        return self._made[key]

    def targets(self, experiment: Experiment) -> list[list[Step]]:
        """The steps that measure each system, one a seed; UserError where a system is not on the board."""
        board = experiment.outcome.results.inputs["systems"]
        found = [[e["metrics"] for e in board if e["system"] == system] for system in self.tuning.systems]
        for system, steps in zip(self.tuning.systems, found, strict=True):
            if not steps:
                there = listing(dict.fromkeys(entry["system"] for entry in board))
                raise UserError(f"{self.path}: tune.systems: there is no {system!r}; accepted: {there}")
        return found


def tune(arguments: argparse.Namespace, store: Store) -> Path:
    """Run the trials that are not done, and show what came of them; the best one's config."""
    tuned = read(arguments)
    book = _book(tuned)
    book.remember()
    draws = _listed(tuned, book)
    if draws or any(not trial.final for trial in book.trials):
        cluster = clusters.read(arguments.cluster)
        if cluster.mode == "ray" and cluster.address:
            nodes.meet(cluster, store.root)
        book.save()
        _run(tuned, book, store, cluster, draws)
    book.save()
    return _shown(tuned, book)


def read(arguments: argparse.Namespace) -> Tuned:
    """The section `tune` of the experiment; UserError where there is none or something in it cannot be."""
    path = arguments.config
    tree = override(read_based(path), arguments.assignments)
    if "tune" not in tree:
        raise UserError(f"{path}: tune: missing; accepted: what is tuned, as in configs/tune-demo.yaml")
    if not isinstance(tree["tune"], dict):
        raise UserError(f"{path}: tune: expected keys and values, got {tree['tune']!r}")
    tuning = parse(Tuning, tree["tune"], where=f"{path}: tune")
    own = recipes.read(path, arguments.assignments, arguments.runs)
    if not hasattr(own.config, "evaluate"):
        raise UserError(f"{path}: tune: {own.config.recipe} has no numbers of its own; tune one of its experiments")
    tuned = Tuned(path, tree, own.run, tuning)
    tuned.targets(own)
    measures = own.config.evaluate.measures
    if tuning.split in (own.config.evaluate.split, "test"):
        raise UserError(
            f"{path}: tune.split: {tuning.split!r} is for the results alone; numbers chosen by its queries would look "
            "better than they are; accepted: another split, such as dev"
        )
    if tuning.measure not in measures:
        raise UserError(f"{path}: tune.measure: {tuning.measure} is not measured; accepted: {listing(measures)}")
    for name, values in tuning.space.items():
        if tuning.search == "optuna" and values.grid is not None:
            raise UserError(f"{path}: tune.space.{name}: grid: Optuna draws; accepted: choice, or search: random")
        for end in values.ends:  # what is accepted at both ends is accepted between them
            tuned.targets(tuned.experiment({name: end}))
    if tuning.search == "optuna":
        _optuna(path)
    return tuned


def _optuna(path: Path) -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError(
            f"{path}: tune.search: optuna is not installed; accepted: random, or `pip install optuna` first"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _book(tuned: Tuned) -> Book:
    """An empty book: trials of the same config, space and measure belong together, however many they are."""
    tuning = tuned.tuning
    alike = tuning.model_dump(mode="json", exclude={"trials"})
    results = tuned.experiment({}).outcome.results.fingerprint
    digest = hashlib.sha256(json.dumps([alike, results], sort_keys=True).encode()).hexdigest()
    return Book(
        folder=tuned.run, measure=tuning.measure, systems=tuning.systems, split=tuning.split, goal=tuning.goal,
        names=list(tuning.space), identity=digest[:12],
    )  # fmt: skip


def _listed(tuned: Tuned, book: Book) -> int:
    """Give the book the trials that are known beforehand; how many are to be drawn while others run."""
    tuning = tuned.tuning
    own = _own(tuned)
    wanted: list[tuple[Point, dict[str, Any]]] = [({}, own)] if tuning.as_it_is else []
    if tuning.search == "random":
        drawn = points(tuning.space, tuning.trials, tuning.seed)
        wanted += [(point, point) for point in drawn if not (tuning.as_it_is and point == own)]
        for point, _ in wanted:
            tuned.targets(tuned.experiment(point))  # a mistake in one is said before any runs
        del book.trials[len(wanted) :]
    for number, (point, shown) in enumerate(wanted):
        if number >= len(book.trials):
            book.trials.append(Trial(number, point, shown))
    drawn_before = len(book.trials) - tuning.as_it_is
    return max(0, tuning.trials - drawn_before) if tuning.search == "optuna" else 0


def _own(tuned: Tuned) -> dict[str, Any]:
    """What the config has at the space's keys, where it says anything there."""
    tree, found = tuned.experiment({}).config.model_dump(mode="json"), {}
    for name, values in tuned.tuning.space.items():
        node: Any = tree
        with contextlib.suppress(KeyError, IndexError, ValueError, TypeError):
            for part in (values.sets or [name])[0].split("."):
                node = node[int(part)] if isinstance(node, list) else node[part]
            found[name] = node
    return found


def _shared_first(tuned: Tuned, store: Store, cluster: Cluster, tracker: Tracker) -> None:
    """Run what no key has a part in before the trials begin, on all of the machine."""
    space = tuned.tuning.space
    sides = [{name: values.ends[place] for name, values in space.items()} for place in (0, -1)]
    try:
        as_it_is, *others = [tuned.experiment(point) for point in ({}, *sides)]
        graphs = [{node.fingerprint for node in _needed(tuned, one)} for one in (as_it_is, *others)]
    except UserError:
        return  # the ends of two ranges do not go together; the trials sort it out among themselves
    measures = [node for steps in tuned.targets(as_it_is) for node in steps]
    waiting = [node for node in todo(measures, store) if node.fingerprint in set.intersection(*graphs)]
    if waiting:
        steps = f"{len(waiting)} step{'s' if len(waiting) > 1 else ''}"
        print(f"first what all trials have in common: {steps}", file=sys.stderr, flush=True)
        run_steps(waiting, store, cluster, tracker)
    dismiss()  # the workers that trained: theirs is a trial's room


def _needed(tuned: Tuned, experiment: Experiment) -> list[Step]:
    """All that a trial's measures stand on."""
    return graph([step for steps in tuned.targets(experiment) for step in steps])


def at_once(cluster: Cluster, most: int, count: int) -> int:
    """How many of so many trials run at once: as many as the profile says, or as there is room for."""
    workers = cluster.train.workers or 1
    if cluster.mode == "inline":
        return most
    there = ray_session(cluster).cluster_resources()
    if cluster.cuda():
        fit = int(there.get("GPU", 0)) // workers
    elif cluster.address:
        fit = int(there.get("CPU", 0)) // (workers + 1)  # one for the map over shards
    else:
        return most
    return max(1, min(fit, cluster.trials or fit, count))


def room(workers: int) -> int:
    """Trials of some training workers each that the cores and the memory of this machine are enough for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores() // workers, memory // MEMORY))


def _run(tuned: Tuned, book: Book, store: Store, cluster: Cluster, draws: int) -> None:
    """Ray Tune over the trials of the book that are not final, and so many draws."""
    from workflows.tune_session import announce, run_trials

    tuning = tuned.tuning
    count = sum(not trial.final for trial in book.trials) + draws
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    most = min(cluster.trials or room(cluster.train.workers or 1), count)
    ray_session(Share.of(cluster, parts=1, trials=most))
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    among = at_once(cluster, most, count)
    task = {
        "path": str(tuned.path), "tree": tuned.tree, "run": str(tuned.run), "store": str(store.root),
        "cluster": cluster.model_dump(mode="json"), "among": among, "most": most,
    }  # fmt: skip
    with tracking(book.folder, cluster) as tracker:
        if count > 1:
            _shared_first(tuned, store, Share.of(cluster, parts=1, trials=most), tracker)
        print(f"{count} trial{'s' if count > 1 else ''}, {among} at a time", file=sys.stderr, flush=True)

        def says(one: Trial) -> None:
            announce(line(book, one))
            _hand_on(tuned, one, store, tracker)

        with watched(tuned, book, store, tracker):
            run_trials(
                trial, task, book, draws=draws, space=tuning.space, goal=tuning.goal, seed=tuning.seed, among=among,
                asha=tuning.keep if tuning.scheduler == "asha" else None, retries=cluster.retries,
                optuna=_optuna(tuned.path) if tuning.search == "optuna" else None, says=says,
            )  # fmt: skip


def trial(about: dict[str, Any], *, task: dict[str, Any]) -> None:
    """One trial, in a process of Ray Tune's: run what its systems need, one after another, and report each measure."""
    from ray.tune import report

    tuning = parse(Tuning, task["tree"]["tune"], where=task["path"])
    tuned = Tuned(Path(task["path"]), task["tree"], Path(task["run"]), tuning)
    store = object_store.opened(Path(task["store"]))
    cluster = Share.of(parse(Cluster, task["cluster"], where="cluster"), parts=task["among"], trials=task["most"])
    spent = {"seconds": about["seconds"], "steps": about["steps"]}
    for place, value in enumerate(about["measures"], 1):  # of an earlier run
        report({"systems": place, "value": value, **spent})
    if about["final"]:
        return
    done = len(about["measures"])
    try:
        for place, steps in enumerate(tuned.targets(tuned.experiment(about["point"]))[done:], done + 1):
            for node in todo(steps, store):
                began = time.monotonic()
                if execute(node, store, cluster, on_wait=lambda _: None):
                    spent["seconds"] += time.monotonic() - began
                    spent["steps"] += 1
            report({"systems": place, "value": _value(tuned, steps, store), **spent})
    except (StepFailed, UserError) as error:
        report({"failed": str(error), **spent})


def _value(tuned: Tuned, steps: list[Step], store: Store) -> float:
    """The measure of a system: the mean over its seeds."""
    records = [store.record(node) for node in steps]
    return fmean(record["summary"]["measures"][tuned.tuning.measure] for record in records if record is not None)


@contextlib.contextmanager
def watched(tuned: Tuned, book: Book, store: Store, tracker: Tracker) -> Iterator[None]:
    """Say what the trials are at, until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(tuned, book, store, tracker, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(tuned: Tuned, book: Book, store: Store, tracker: Tracker, stop: threading.Event) -> None:
    live = sys.stderr.isatty()
    while not stop.wait(LATENCY[live]):
        running = [trial for trial in book.trials if trial.state == "running"]
        for one in running:
            _hand_on(tuned, one, store, tracker)
        at = [f"trial {one.number}: {_at(tuned, one, store)}" for one in running]
        if at:
            line = " | ".join(at)
            print(
                f"\r\033[K{line[: _width()]}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True
            )
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _hand_on(tuned: Tuned, one: Trial, store: Store, tracker: Tracker) -> None:
    """Hand on a trial's measures, and the losses of its trainings, whoever trained them."""
    for node in _needed(tuned, tuned.experiment(one.point)):
        if node.function.__name__ == "train" and (store.path(node) / "metrics.jsonl").exists():
            tracker.training(f"trial {one.number}/{node.label}", store.path(node))
    for place, value in enumerate(one.measures, 1):
        tracker.send(f"trial {one.number}", {tuned.tuning.measure: value}, place)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns - 1


def _at(tuned: Tuned, one: Trial, store: Store) -> str:
    """The step that a trial is at, and how far it is."""
    targets = tuned.targets(tuned.experiment(one.point))[len(one.measures) :]
    waiting = todo([step for steps in targets for step in steps], store)
    if not waiting:
        return "measured"
    far = glance(store.path(waiting[0]))
    return waiting[0].label + (f" {far}" if far else "")


def line(book: Book, one: Trial) -> str:
    """What a trial came to, for the log."""
    values = ", ".join(f"{name}={said(one.shown[name])}" for name in book.names if name in one.shown)
    what = "as it is: " if not one.point else ""
    if one.state == "failed":
        came = f"failed: {one.reason}"
    else:
        came = f"{book.measure} {one.measures[-1]:.3f} of {book.systems[len(one.measures) - 1]}"
        came += ", stopped" if one.state == "stopped" else ""
    return f"trial {one.number}: {came}  ({what}{values})"


def _shown(tuned: Tuned, book: Book) -> Path:
    """Print the table and write the page; the best trial's config. StepFailed where there is none."""
    best = book.best
    if best is None:
        reason = next((one.reason for one in book.trials if one.reason), "none came to the last system")
        raise StepFailed(f"no trial is done: {reason}")
    config = tuned.experiment(best.point).config.model_dump(mode="json")
    results = tuned.tree.get("evaluate", {}).get("split", EvaluateConfig().split)
    path = trials.write_best(book, config, tuned.path, results=results)
    scales = {name: "loguniform" for name, values in tuned.tuning.space.items() if values.loguniform}
    page = trials.write_page(
        book, title=tuned.path.stem, source=tuned.path, config=config, scales=scales, results=results
    )
    print(trials.table(book))
    print(f"\nthe best:   {path}\nthe report: {page}\n")
    return path
