"""Run an experiment on a Ray cluster as one job, and follow its log. The job is the command `run` in a copy of this
code. It reads its sources on the cluster, and writes to a store and to runs there. Repeat the command to follow the
same job again, or to resume the run if the job is gone."""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from sparring.components.config import Config, UserError
from sparring.components.models.configs import Pretrained, is_directory
from sparring.components.sources.remote import is_url
from sparring.workflows import ROOT
from sparring.workflows.commands.shared_arguments import add_cluster, add_config
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.program import program
from sparring.workflows.quantities import duration
from sparring.workflows.store import s3
from sparring.workflows.store.dag import graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    add_cluster(parser, default=ROOT / "cluster" / "joined.yaml")
    parser.add_argument("--address", required=True, metavar="URL", help="the job server, such as http://127.0.0.1:8265")
    parser.add_argument("--no-wait", action="store_true", help="do not follow the log")
    parser.add_argument("--tune", action="store_true", help="run the command `tune` there instead of `run`")
    parser.add_argument(
        "--install",
        action="store_true",
        help="install the locked packages on every node for this job (minutes); for nodes that lack them",
    )


def call(arguments: argparse.Namespace) -> None:
    """Send a job and follow it to its end. This command ends as the job does."""
    from sparring.workflows.distributed import job_package, job_server

    if arguments.tune:
        from sparring.workflows.tuning.config import read_tuning

        read_tuning(arguments)  # with a mistake, nothing is sent
    if loading.is_run(arguments.config):
        raise UserError(f"{arguments.config}: the folder of a run here; accepted: its config, with the same --set")
    address = job_server.url_of(arguments.address)
    store, runs = places(arguments)
    experiment = loading.read(arguments.config, arguments.assignments, runs)
    cluster = joining(arguments.cluster)
    if (relative := _relative(experiment)) is not None:
        print(
            f"note: {relative}: the job looks for it in its own folder, where nothing but the code is; data and "
            "models that the store does not have yet are read at absolute paths, data also in $SPARRING_DATA",
            file=sys.stderr,
        )
    sets = [word for assignment in arguments.assignments for word in ("--set", assignment)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sent = job_package.pack(arguments.config, cluster, folder, arguments.assignments)
        purpose = [
            *("python", "-m", "sparring", "--store", str(store), "--runs", str(runs)),
            *("tune" if arguments.tune else "run", sent),
            *("--cluster", job_package.PROFILE),
            *sets,
        ]
        command = [*purpose, *([] if arguments.tune else ["--known-as", str(arguments.config)])]
        server = job_server.JobServer.at(address)
        job, running, changed = server.send(
            experiment.run.name,
            shlex.join(command),
            folder,
            purpose=shlex.join(purpose),
            install=arguments.install,
            wait_seconds=cluster.wait_seconds,
        )
    stop = f"ray job stop --address {address} {job}"
    hints = f"its log: ray job logs --address {address} --follow {job}\nstop it: {stop}"
    state = "is running already" if running else "was sent"
    print(f"job {job} {state}; Ray's dashboard: {address}", file=sys.stderr, flush=True)
    if changed:
        print(
            f"note: it was sent with other code or settings; to send these, stop it and repeat the command: {stop}",
            file=sys.stderr,
            flush=True,
        )
    if arguments.no_wait:
        print(f"{hints}\nRepeat the command without --no-wait to follow it.")
        return
    try:
        server.follow(job)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"The job {job} is still running. Repeat the command to follow it.\n{hints}") from None
    seconds = server.end(job)
    if isinstance(store, str) and not arguments.tune:  # any machine can write the report from the store
        words = [*program().split(), "--store", store, "report", str(arguments.config), *sets]
        report = f"the report: {shlex.join(words)}"
    else:
        page = "tune.html" if arguments.tune else "report.html"
        report = f"the report, on the cluster: {experiment.run / page}"
    print(f"job {job}: done in {duration(seconds)}; {report}")


def _relative(experiment: Experiment) -> str | None:
    """Return a path that a step reads and that means another place on the cluster. Return None if there is none."""
    for node in graph(experiment.wanted):
        for value in (bound for bound in node.inputs.values() if isinstance(bound, Config)):
            for name in _read(value):
                if not Path(name).is_absolute():
                    return name
    return None


def _read(config: Config) -> list[str]:
    """List what a step with this config reads outside the store, as the config names it."""
    if is_url(str(getattr(config, "path", ""))):  # the cluster copies it
        return []
    if isinstance(config, Pretrained):  # its files are where its name leads from here
        return [config.model] if is_directory(config.model) else []
    try:
        return [str(path) for path in config.files().values()]
    except UserError:  # the files are not here
        return config.missing()


def places(arguments: argparse.Namespace) -> tuple[str | Path, Path]:
    """Return the job's store and runs. UserError if they are places on this machine."""
    location = arguments.store or os.environ.get("SPARRING_STORE")
    accepted = "accepted: an absolute path that all nodes of the cluster see, or s3://BUCKET/PREFIX"
    if location is None:
        raise UserError(f"--store: missing; a job's own folder is deleted when it ends; {accepted}")
    if "://" in str(location):
        s3.local_path(location)
        if arguments.tune and not arguments.runs.is_absolute():
            raise UserError(
                "--runs: got a relative path, but tuning keeps its table of trials there. Use an absolute path on the "
                "cluster."
            )
        return location, arguments.runs  # any machine can write the report from the store
    store = Path(location)
    # The default of --runs is a folder of this machine.
    runs = store.parent / "runs" if arguments.runs == Path("runs") else arguments.runs
    for name, place in (("--store", store), ("--runs", runs)):
        if not place.is_absolute():
            raise UserError(
                f"{name} {place}: is a place on this machine, and the job runs on the cluster; {accepted}",
                key=name,
                code="local-path",
            )
    return store, runs


def joining(path: Path) -> Cluster:
    """Read a profile that joins the cluster on which the job runs. UserError if it names another cluster."""
    cluster = clusters.read_cluster(path)
    if cluster.mode != "ray":
        raise UserError(f"{path}: mode: {cluster.mode!r} is for one process; accepted for a job: ray")
    if cluster.address not in (None, "auto"):
        raise UserError(f"{path}: address: a job joins the cluster it runs on, got {cluster.address!r}; accepted: auto")
    return cluster.model_copy(update={"address": "auto"})
