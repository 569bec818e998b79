"""What each command does."""

import argparse
import json
import os
import shlex
import time
from contextlib import suppress
from typing import Any

import yaml

from components.config import UserError, listing
from components.files import write_json
from workflows import cleaning, nodes, object_store, recipes
from workflows import cluster as clusters
from workflows import report as reports
from workflows.dag import Step, graph
from workflows.observe import tracking
from workflows.recipes import Experiment
from workflows.running import run_steps
from workflows.store import Store, states, todo, unchanged
from workflows.trials import Book
from workflows.trials import table as trials_table
from workflows.worker_group import dismiss


def opened(arguments: argparse.Namespace) -> tuple[Experiment, Store]:
    """The experiment that the arguments name, and the store."""
    experiment = recipes.read(arguments.config, arguments.assignments, arguments.runs)
    store = object_store.opened(_root(arguments))
    store.look(graph(experiment.wanted))
    return experiment, store


def _root(arguments: argparse.Namespace) -> str:
    return str(arguments.store or os.environ.get("SPARRING_STORE", "store"))


def leave() -> None:
    """Leave Ray, if a command joined it."""
    clusters.stop_ray()
    dismiss()  # those whose Ray is no more are forgotten


def plan(arguments: argparse.Namespace) -> None:
    """Print every step: label, function, state, place. With a profile, whether what it speaks of can do the work."""
    experiment, store = opened(arguments)
    if arguments.cluster:
        clusters.read(arguments.cluster).check()
    print(plan_text(experiment, store))
    missing = experiment.outcome.data.inputs["source"].missing()
    if missing and not store.done(experiment.outcome.data):
        print(f"source missing: {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))


def plan_text(experiment: Experiment, store: Store) -> str:
    """The plan as a table."""
    rows = [("label", "step", "state", "where")]
    for node, state in states(experiment.wanted, store):
        record = store.record(node)
        if state == "done" and record is not None and record["dropped"]:
            state_text = f"done, {listing(record['dropped'])} dropped"
        else:
            state_text = state
        rows.append((node.label, node.function.__name__, state_text, node.name))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
    waiting = sum(row[2] in ("to do", "partial") for row in rows)
    return "\n".join([*lines, "", f"{len(rows) - 1} steps, {waiting} to run"])


def run(arguments: argparse.Namespace) -> None:
    """Run what is not done, write the run's files, and print the table."""
    experiment, store = opened(arguments)
    unchanged(graph(experiment.wanted), store)
    wanted = experiment.wanted
    if arguments.until:
        wanted = [labelled(experiment, arguments.until)]
    cluster = clusters.read(arguments.cluster)
    waiting = todo(wanted, store, whole=bool(arguments.until))  # asked for by name: what was dropped comes back
    if waiting:  # what cannot be done is refused before anything is written
        joins = cluster.mode == "ray" and cluster.address
        nodes.meet(cluster, store.root) if joins else cluster.check()
    _write_run(experiment, store)
    started = time.monotonic()
    with tracking(experiment.run, cluster) as tracker:
        executed = run_steps(waiting, store, cluster, tracker)
        _link(experiment, store)
        if arguments.until:
            print(f"{arguments.until}: {store.where(wanted[0])}")
            return
        metrics = _report(experiment, store, executed)
        if executed:
            tracker.measures(metrics["rows"])
    print(reports.table(metrics))
    if not waiting:
        print("nothing to run: every step that this needs is done")
    elif executed:  # otherwise another driver did it all
        print(reports.where(reports.timeline(_done(experiment, store), executed)[0], time.monotonic() - started))
    print(f"\nreport: {experiment.run / 'report.html'}")
    words = ["python -m workflows", *_options(arguments), f'search {arguments.config} "your question"']
    words += [f"--set {shlex.quote(assignment)}" for assignment in arguments.assignments]
    print(f"try:    {' '.join(words)}" + (" --rank" if experiment.outcome.ranker is not None else ""))


def submit(arguments: argparse.Namespace) -> None:
    """Run on a Ray cluster, as one job of it."""
    from workflows import submit as submission

    if arguments.tune:
        from workflows import tune as tuning

        tuning.read(arguments)  # so that a mistake sends nothing
    submission.submit(arguments)


def tune(arguments: argparse.Namespace) -> None:
    """Look for better numbers by many trials of the recipe, then finish the best one."""
    from workflows import tune as tuning

    experiment, store = opened(arguments)
    unchanged(graph(experiment.wanted), store)
    best = tuning.tune(arguments, store)
    leave()  # a Ray with room for many trials; the run starts its own
    run(argparse.Namespace(**{**vars(arguments), "config": best, "assignments": [], "until": None}))


def _options(arguments: argparse.Namespace) -> list[str]:
    """The options before the command, as they were given."""
    return [f"--store {shlex.quote(str(arguments.store))}"] if arguments.store else []


def _metrics(experiment: Experiment, store: Store, executed: set[str]) -> dict[str, Any]:
    """What `metrics.json` says of the store as it is."""
    return reports.metrics_of(experiment.outcome.results, _done(experiment, store), store, executed)


def _done(experiment: Experiment, store: Store) -> list[tuple[Step, dict[str, Any]]]:
    """The finished steps with their records."""
    return [(node, record) for node in graph(experiment.wanted) if (record := store.record(node)) is not None]


def _reported(experiment: Experiment, metrics: dict[str, Any]) -> bool:
    """Whether the run's files tell of these artifacts: its config may have been another when they were written."""
    page, path = experiment.run / reports.REPORT, experiment.run / reports.METRICS
    if not page.exists() or not path.exists():
        return False
    there = json.loads(path.read_text())
    return bool(_but_executed(there) == _but_executed(metrics))


def _but_executed(metrics: dict[str, Any]) -> dict[str, Any]:
    return {**metrics, "steps": [{**one, "executed": None} for one in metrics["steps"]]}


def _report(experiment: Experiment, store: Store, executed: set[str]) -> dict[str, Any]:
    """Write metrics.json and, unless nothing ran and it is there, report.html; the metrics."""
    metrics, outcome = _metrics(experiment, store, executed), experiment.outcome
    if not executed and _reported(experiment, metrics):
        write_json(experiment.run / reports.METRICS, metrics)
        return metrics
    return reports.write(
        experiment.run, title=experiment.name, wanted=experiment.wanted, results=outcome.results, store=store,
        executed=executed, config=experiment.config.model_dump(mode="json"), note=outcome.note,
        examples=outcome.examples, costs=outcome.costs,
    )  # fmt: skip


def _write_run(experiment: Experiment, store: Store) -> None:
    experiment.run.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_dump(experiment.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    (experiment.run / "config.yaml").write_text(config)
    (experiment.run / "plan.txt").write_text(plan_text(experiment, store) + "\n")


def _link(experiment: Experiment, store: Store) -> None:
    """Links to the finished artifacts, numbered in order."""
    for old in experiment.run.iterdir():
        if old.is_symlink():
            old.unlink(missing_ok=True)
    for number, node in enumerate(graph(experiment.wanted)):
        if store.done(node):
            link = experiment.run / f"{number:02d}-{node.label.replace(' ', '-').replace('/', '-')}"
            with suppress(FileExistsError):  # another driver of the same run was quicker
                link.symlink_to(os.path.relpath(store.path(node), experiment.run.resolve()))


def labelled(experiment: Experiment, label: str) -> Step:
    """The step with a label; UserError lists what there is."""
    found = [node for node in graph(experiment.wanted) if node.label == label]
    if not found:
        accepted = listing(dict.fromkeys(node.label for node in graph(experiment.wanted)))
        raise UserError(f"no step is labelled {label!r}; accepted: {accepted}")
    return found[0]


def finished(store: Store, node: Step) -> dict[str, Any]:
    """A step's record; UserError where it is not done."""
    record = store.record(node)
    if record is None:
        raise UserError(f"the step {node.label!r} is not done; run it first: python -m workflows run CONFIG")
    return record


def show(arguments: argparse.Namespace) -> None:
    """Print the measures, or one step's record."""
    experiment, store = opened(arguments)
    if arguments.watch:
        from workflows import watch

        watch.watch(experiment, store)
        return
    if arguments.label is not None:
        node = labelled(experiment, arguments.label)
        record = finished(store, node)
        if arguments.json:
            print(json.dumps(record, indent=1))
            return
        print(f"{node.label}: {record['function']} in {record['seconds']:.1f} s\n{store.where(node)}")
        for key, value in record["summary"].items():
            print(f"  {key}: {json.dumps(value)}")
        return
    if not store.done(experiment.outcome.results) and (book := Book.read(experiment.run)) is not None:
        print(trials_table(book))
        return
    finished(store, experiment.outcome.results)
    metrics = _metrics(experiment, store, set())
    if _reported(experiment, metrics):
        metrics = json.loads((experiment.run / reports.METRICS).read_text())  # it knows what ran last
    print(json.dumps(metrics, indent=1) if arguments.json else reports.table(metrics))


def report(arguments: argparse.Namespace) -> None:
    """Write the report of a finished run."""
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.results)
    _write_run(experiment, store)
    _link(experiment, store)
    (experiment.run / reports.REPORT).unlink(missing_ok=True)
    _report(experiment, store, set())
    print(experiment.run / "report.html")


def search(arguments: argparse.Namespace) -> None:
    """Print what the trained models find."""
    from workflows import searching

    experiment, store = opened(arguments)
    print(searching.text(experiment, store, clusters.read(arguments.cluster), arguments))


def export(arguments: argparse.Namespace) -> None:
    """Copy models, rankings and qrels in the formats that other tools load."""
    from workflows import exporting

    experiment, store = opened(arguments)
    finished(store, experiment.outcome.results)
    for line in exporting.write(experiment, store, arguments.directory):
        print(line)


def clean(arguments: argparse.Namespace) -> None:
    """Drop what no finished result needs any more."""
    experiment, store = opened(arguments)
    if todo(experiment.wanted, store):
        raise UserError("the run is not finished; clean drops what only an unfinished run still needs")
    freed = 0
    for node, parts, size in cleaning.superseded(experiment, store):
        freed += size
        print(
            f"{'would drop' if arguments.dry_run else 'dropped'} {size / 2**20:8.1f} MB  {node.label}: {listing(parts)}"
        )
        if not arguments.dry_run:
            store.drop(node, parts)
    print(f"{freed / 2**20:.1f} MB {'to free' if arguments.dry_run else 'freed'}")


def evaluate(arguments: argparse.Namespace) -> None:
    """Print the measures of a TREC run file."""
    from components import measures, trec

    ranking = trec.read_ranking(arguments.ranking)
    qrels = trec.read_qrels(arguments.qrels)
    table = measures.per_query(ranking, qrels, arguments.measures)
    if not len(table):
        raise UserError(f"{arguments.qrels}: no query has a relevant document")
    for name, value in measures.means(table).items():
        print(f"{name}\t{value:.4f}")


def doctor(arguments: argparse.Namespace) -> None:
    """Check what the commands need."""
    from workflows import checkup

    if not checkup.report(_root(arguments)):
        raise UserError("something is missing; the lines above say what to do")
