"""Print every step with its state and its place, and run nothing. With --cluster, also check that the profile's
machines can do the work. With --estimate, print what the run would cost in time, memory, disk and money. For several
experiments, print a line each."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.components.models.capabilities import can_be_read
from sparring.components.models.configs import Pretrained
from sparring.components.retrieval.lucene import AnalyzerConfig, analyzer_name
from sparring.components.sources.own_queries import undecided
from sparring.workflows import ROOT
from sparring.workflows.commands import languages
from sparring.workflows.commands.batch import add_configs, named
from sparring.workflows.commands.shared_arguments import opened
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.estimating.collection import assumptions
from sparring.workflows.estimating.estimate import estimate
from sparring.workflows.estimating.run_time import write_estimate
from sparring.workflows.estimating.site import site
from sparring.workflows.estimating.table import estimate_text
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.experiments.scale import NoSmallScale
from sparring.workflows.program import program
from sparring.workflows.quantities import duration, size
from sparring.workflows.running.executor import missing_for, source_changes
from sparring.workflows.running.plan import defaults_text, plan_text
from sparring.workflows.running.refusals import Refusals
from sparring.workflows.running.tracking import check_installed
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.tuning.config import TunedExperiment, read_tuning
from sparring.workflows.tuning.first_trials import fixed_steps, fixed_trials
from sparring.workflows.tuning.search_space import Point, points


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configs(parser)
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="check that the machines of this profile can run it"
    )

    parser.add_argument(
        "--estimate",
        action="store_true",
        help="print the time, memory, disk and (price_per_hour in the profile) money of each step",
    )
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="KEY=NUMBER",
        help="estimate for a collection that is not here: documents=1e9, queries=500000, queries.test=7000, "
        "document_tokens=80, query_tokens=10",
    )


def call(arguments: argparse.Namespace) -> None:
    """Print the plan."""
    paths = named(arguments)
    profile = clusters.read_cluster(arguments.cluster) if arguments.cluster else None
    if len(paths) > 1:
        _several(arguments, paths, profile)
        return
    assumed = assumptions(arguments.assume)
    # Neither machines nor data are here, so every step counts as pending and the store is not read.
    elsewhere = "documents" in assumed and profile is not None and profile.hardware is not None
    experiment, store = opened(argparse.Namespace(**vars(arguments), config=paths[0]), asks=not elsewhere)
    tuned = None
    if "tune" in loading.read_tree(paths[0], arguments.assignments):
        tuned = read_tuning(argparse.Namespace(**vars(arguments), config=paths[0]))
    if arguments.estimate or assumed:
        profile = profile or clusters.read_cluster(ROOT / "cluster" / "laptop.yaml")
        _estimate(experiment, store, profile, assumed, tuned)
        return
    machine = None if profile is None else resolve_machine(profile)
    if profile is not None:
        check_installed(profile.track)
    trials = [] if tuned is None else fixed_steps(tuned)
    nodes = graph(experiment.wanted)
    for line in _analyzers(nodes):
        print(line)
    print(plan_text(experiment.wanted, store))
    if experiment.defaults:
        print(f"\nChosen for this collection:\n{defaults_text([default[:3] for default in experiment.defaults])}\n")
    waiting = pending([*experiment.wanted, *trials], store)
    missing = list(dict.fromkeys(name for node in waiting for name in missing_for(node)))
    if missing:
        print(f"source missing: {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))
    for line in (*_undecided(nodes, store), *_languages(nodes)):
        print(line)
    for model in _models_elsewhere(waiting):
        print(
            f"model missing: {model}: it is neither a folder nor in this machine's cache, and the hub does not have it"
        )
    Refusals(waiting, store, machine).check(artifacts=False)
    if profile is not None:
        print(f"{arguments.cluster}: {'the cluster' if profile.address else 'this machine'} has what it asks for")
    _say_changes(nodes, store)
    if tuned is not None:
        in_run = {node.fingerprint for node in nodes}
        _say_changes([node for node in graph(trials) if node.fingerprint not in in_run], store, "`tune`")
        print(_tuning(tuned))


def _analyzers(nodes: Sequence[Step]) -> list[str]:
    """Describe how BM25 analyzes text."""
    configs = [value for node in nodes for value in node.inputs.values() if isinstance(value, AnalyzerConfig)]
    lines = [f"BM25: `bm25.index.language: {config.language}` ({analyzer_name(config)})" for config in configs]
    return list(dict.fromkeys(lines))


def _languages(nodes: Sequence[Step]) -> list[str]:
    """Report languages that do not fit each other, in collections whose files are here and can be read."""
    lines: list[str] = []
    analyzers = {
        node.inputs["data"].fingerprint: value
        for node in nodes
        for value in node.inputs.values()
        if isinstance(value, AnalyzerConfig)
    }
    begun = [value for node in nodes for value in node.inputs.values() if isinstance(value, Pretrained)]
    for node in nodes:
        if node.description.makes != "collection" or node.inputs["source"].missing():
            continue
        try:
            spoken = languages.look(node.inputs["source"])
        except UserError:  # the run reports it
            continue
        if node.fingerprint in analyzers:
            lines += languages.of_analyzer(spoken, analyzers[node.fingerprint])
        lines += languages.of_queries(spoken)
        for model in begun:
            lines += languages.of_start_model(spoken, model)
    return list(dict.fromkeys(lines))


def _undecided(nodes: list[Step], store: Store) -> Iterator[str]:
    """Yield a remark for each collection whose queries are documents, until the config says what to do with these.
    Skip sources that are read only for their judgements."""
    searched = {before.fingerprint for node in nodes if node.part != "evaluation" for before in node.upstream}
    for node in nodes:
        if node.description.makes == "collection" and node.fingerprint in searched:
            record = store.record(node)
            with suppress(UserError):  # files that cannot be read, which the run reports
                remark = undecided(node.inputs["source"]) if record is None else record["summary"].get("undecided")
                if remark:
                    yield f"{node.label}: {remark}"


def _models_elsewhere(waiting: Iterable[Step]) -> list[str]:
    """List the models that waiting steps begin from and that cannot be read here."""
    begun = [value for node in waiting for value in node.inputs.values() if isinstance(value, Pretrained)]
    return list(dict.fromkeys(model.model for model in begun if not can_be_read(model)))


def _say_changes(nodes: Iterable[Step], store: Store, by: str = "`run`") -> None:
    """Print the changes to what finished steps have read, which stop a command."""
    for change in source_changes(nodes, store):
        print(f"{by} stops here: {change}")


def _tuning(tuned: TunedExperiment) -> str:
    """Describe in a line what `tune` would do."""
    tuning = tuned.tuning
    drawn = len(_tried(tuned)) - tuning.baseline
    baseline = ", beside the config as it is" if tuning.baseline else ""
    return (
        f"this is the plan of `run`; `{program()} tune {tuned.path}` tries {drawn:,} points of {listing(tuning.space)}"
        f"{baseline}, by {tuning.measure} of {tuning.systems[-1]} on {tuning.split}"
    )


def _tried(tuned: TunedExperiment) -> list[Point]:
    """Return the points that a tuning tries. If Optuna chooses them, return points of the same cost."""
    tuning = tuned.tuning
    sampled = points(tuning.space, tuning.trials, tuning.seed) if tuning.search == "optuna" else []
    return [*(point for point, _ in fixed_trials(tuned)), *sampled]


def _several(arguments: argparse.Namespace, paths: list[Path], profile: Cluster | None) -> None:
    """Print a line per experiment: its steps, and how many are to run that no experiment before it runs."""
    if arguments.estimate or arguments.assume:
        raise UserError("--estimate: it takes one experiment; accepted: one config")
    machine = None if profile is None else resolve_machine(profile)
    seen: set[str] = set()
    for path in paths:
        try:
            experiment, store = opened(argparse.Namespace(**vars(arguments), config=path))
        except NoSmallScale as error:
            print(f"{path}: left out: {error.reason}")
            continue
        waiting = pending(experiment.wanted, store)
        unseen = [node for node in waiting if node.fingerprint not in seen]
        try:
            Refusals(waiting, store, machine).check(artifacts=False)
        except UserError as error:
            raise error.within(str(path)) from None
        print(f"{path}: {len(unseen)} to run of {len(graph(experiment.wanted))} steps")
        _say_changes(graph(experiment.wanted), store, f"{path}: `run`")
        seen |= {node.fingerprint for node in waiting}
    print(f"in all: {len(seen)} steps to run")


def _estimate(
    experiment: Experiment, store: Store, profile: Cluster, assumed: Mapping[str, float], tuned: TunedExperiment | None
) -> None:
    """Print the estimate, and that of a tuning's trials. UserError if the run cannot fit."""
    profile_site = site(profile, store.root)
    profile_site.check()
    trials = [] if tuned is None else [tuned.experiment(point) for point in _tried(tuned)]
    measured = [] if tuned is None else [step for run in trials for steps in tuned.measure_steps(run) for step in steps]
    wanted = [*experiment.wanted, *measured]
    nodes = graph(wanted)
    waiting = nodes if "documents" in assumed else pending(wanted, store)
    Refusals(waiting, store, profile_site.machine()).check(artifacts=False)
    whole = estimate(nodes, {node.fingerprint for node in waiting}, profile_site, store, assumed=assumed)
    expected = whole.of(graph(experiment.wanted))
    print(estimate_text(expected))
    _say_changes(graph(experiment.wanted), store)
    if tuned is not None:
        tried = whole.of(graph(measured))
        steps = f"{len(tried.rows):,} steps" + (" at most" if tuned.tuning.scheduler == "asha" else "")
        print(
            f"`{program()} tune {tuned.path}`: {len(trials):,} trials of {steps}, those that they share counted once; "
            f"{duration(tried.seconds)} of work, {size(tried.kept)} of disk"
        )
    if not assumed and profile.hardware is None and not expected.problems:
        write_estimate(experiment.run, expected)
    if problems := [*expected.problems, *whole.problems]:
        raise UserError(f"this cannot fit: {problems[0]}")
