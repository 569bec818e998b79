"""A run as one job of a Ray cluster: what is sent, how it is followed, and what its end means here.

The job is the command `run`, in a copy of the code that Ray lays on every node. It reads the sources where the cluster
has them, and writes to its store and its runs. Of this machine nothing is sent but `CODE`, the experiment, the profile
and what `_environment` names.
"""

import argparse
import asyncio
import hashlib
import http.client
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

from components.config import UserError, read_based
from workflows import cluster as clusters
from workflows import mirror, nodes, recipes
from workflows.cluster import Cluster
from workflows.store import StepFailed, code

ROOT = Path(__file__).resolve().parent.parent
CODE = ("workflows", "components", "configs", "cluster")
"""What of the repository is sent. A list of what goes, not of what stays: no notes, data or keys go by mistake."""
PATIENCE = 10.0
"""Seconds that an address has to answer, at first."""
LOST = 120.0
"""Seconds without an answer after which a job server counts as gone."""


def submit(arguments: argparse.Namespace) -> None:
    """Send a run to a cluster and follow it to its end, which becomes this command's end."""
    address = _url(arguments.address)
    store, runs = _places(arguments)
    experiment = recipes.read(arguments.config, arguments.assignments, runs)
    cluster = _profile(arguments.cluster)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            *("python", "-m", "workflows", "--store", str(store), "--runs", str(runs)),
            *("tune" if arguments.tune else "run", _pack(arguments.config, cluster, folder)),
            *("--cluster", "sent/cluster.yaml"),
            *(word for assignment in arguments.assignments for word in ("--set", assignment)),
        ]
        _answers(address)
        client = _client(address)
        job, found = _send(client, experiment.run.name, shlex.join(command), folder, install=arguments.install)
    follow = f"ray job logs --address {address} --follow {job}"
    stop = f"ray job stop --address {address} {job}"
    state = "is at this already" if found else "was sent"
    print(f"job {job} {state}; Ray's dashboard: {address}", file=sys.stderr, flush=True)
    if arguments.no_wait:
        print(f"its log: {follow}\nstop it: {stop}\nThe same command without --no-wait follows it.")
        return
    try:
        asyncio.run(_follow(client, job))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"The job {job} runs on; the same command follows it again.\nits log: {follow}\nstop it: {stop}"
        ) from None
    page = experiment.run / ("tune.html" if arguments.tune else "report.html")
    said = f"python -m workflows --store {store} report {arguments.config}"  # where it can be had, from any machine
    _end(client, job, said if isinstance(store, str) and not arguments.tune else page)


def _url(address: str) -> str:
    """The job server's URL without a slash at its end; UserError where it is none, or has a secret in it."""
    url = urllib.parse.urlsplit(address)
    if url.username is not None or url.query:
        raise UserError("--address: has more in it than a server, and would end in logs; accepted: http(s)://HOST:PORT")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UserError(f"--address {address}: accepted: the job server's URL, such as http://127.0.0.1:8265")
    return address.rstrip("/")


def _answers(address: str) -> None:
    """UserError unless a job server of Ray's answers there; Ray's own client would wait for minutes."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=PATIENCE) as reply:
            said = json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return  # it asks for a token, which Ray's client will show it
        said = None
    except (ValueError, http.client.HTTPException):
        said = None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # whose certificates are good is for Ray's client to say: it has a list of its own
        raise UserError(
            f"--address {address}: does not answer ({reason}); is the cluster there, and the port?"
        ) from None
    if not isinstance(said, dict) or "ray_version" not in said:
        raise UserError(f"--address {address}: answers, but is no job server of Ray's (its port is 8265 by default)")


def _places(arguments: argparse.Namespace) -> tuple[str | Path, Path]:
    """The job's store and runs; UserError where only this machine could know what is meant."""
    given = arguments.store or os.environ.get("SPARRING_STORE")
    accepted = "accepted: an absolute path that all nodes of the cluster see, or s3://BUCKET/PREFIX"
    if given is None:
        raise UserError(f"--store: a job needs one, as its own folder goes when it ends; {accepted}")
    if "://" in str(given):
        mirror.place(given)
        if arguments.tune and not arguments.runs.is_absolute():
            raise UserError("--runs: tuning keeps its book there; accepted: an absolute path of the cluster's")
        return given, arguments.runs  # the report can be had from the store, anywhere
    store = Path(given)
    # The default of --runs is a folder of this machine.
    runs = store.parent / "runs" if arguments.runs == Path("runs") else arguments.runs
    for name, place in (("--store", store), ("--runs", runs)):
        if not place.is_absolute():
            raise UserError(f"{name} {place}: is a place on this machine, and the job runs on the cluster; {accepted}")
    return store, runs


def _profile(path: Path) -> Cluster:
    """The profile, joining the cluster that the job runs on."""
    cluster = clusters.read(path)
    if cluster.mode != "ray":
        raise UserError(f"{path}: mode: {cluster.mode!r} is for one process; accepted for a job: ray")
    if cluster.address not in (None, "auto"):
        raise UserError(f"{path}: address: a job joins the cluster it runs on, got {cluster.address!r}; accepted: auto")
    return cluster.model_copy(update={"address": "auto"})


def _pack(config: Path, cluster: Cluster, folder: Path) -> str:
    """Fill a folder with all that a job needs; the place of its experiment there."""
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    _write(folder / "sent" / "cluster.yaml", cluster.model_dump(mode="json"))
    return _experiment(config, folder)


def _experiment(config: Path, folder: Path) -> str:
    """Write an experiment's file, whole with what it stands on, to its place in what is sent."""
    whole = config.resolve()
    if whole.is_relative_to(ROOT):
        place = whole.relative_to(ROOT)
    else:
        place = Path("sent") / hashlib.sha256(str(whole.parent).encode()).hexdigest()[:6] / whole.name
    tree = read_based(config)
    if tree.get("recipe") == "compare":
        tree["experiments"] = {
            name: {**found, "file": _experiment(Path(found["file"]), folder)}
            if isinstance(found, dict)
            else _experiment(Path(found), folder)
            for name, found in tree["experiments"].items()
        }
    _write(folder / place, tree)
    return str(place)


def _write(path: Path, tree: dict[str, Any]) -> None:
    """Write a tree as YAML: as JSON, which is YAML that leaves no doubt about what is text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def _environment() -> dict[str, str]:
    """What the job finds in its environment; of ours only where the cluster has the data."""
    moved = os.environ.get("SPARRING_DATA")
    if moved and not Path(moved).is_absolute():
        raise UserError(
            f"SPARRING_DATA: {moved} is a place on this machine; accepted: an absolute path of the cluster's"
        )
    data = {"SPARRING_DATA": moved} if moved else {}
    return {**clusters.SETTINGS, **data, "SPARRING_CODE": json.dumps(code())}


def _client(address: str) -> Any:
    """Ray's client of a job server; UserError where it does not let us in."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)  # Ray would take these for the address, whatever it is told
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)  # each asks for INFO
    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            raise UserError(
                f"--address {address}: the cluster asks for a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH "
                "to the file that holds it"
            ) from None
        raise UserError(f"--address {address}: the cluster does not take the token {_whence()}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"--address {address}: {_line(error)}") from None


def _whence() -> str:
    """Where Ray takes the token from: never what it is."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "in RAY_AUTH_TOKEN"
    return f"in {os.environ.get('RAY_AUTH_TOKEN_PATH') or '~/.ray/auth_token'}"


def _send(client: Any, name: str, command: str, folder: Path, *, install: bool) -> tuple[str, bool]:
    """The job that does this, and whether it was found at work: the same command again goes on, here too."""
    environment: dict[str, Any] = {"working_dir": str(folder), "env_vars": _environment()}
    if install:
        packages = [f"{name}=={version}" for name, version in nodes.locked().items()]
        environment["pip"] = {"packages": packages, "pip_check": False}
    digest = _digest(folder, [command, json.dumps(environment["env_vars"], sort_keys=True), str(install)])
    for job in client.list_jobs():
        if (job.metadata or {}).get("sparring") == digest and not job.status.is_terminal():
            return str(job.submission_id), True
    # Ray takes an id once; a run that is submitted again goes on where it was under another.
    wanted = f"{re.sub('[^A-Za-z0-9_.-]', '-', name)}-{secrets.token_hex(3)}"
    try:
        job = client.submit_job(
            entrypoint=command, runtime_env=environment, submission_id=wanted, metadata={"sparring": digest}
        )
    except RuntimeError as error:
        raise StepFailed(f"the cluster did not take the job: {_line(error)}") from error
    return str(job), False


def _digest(folder: Path, words: list[str]) -> str:
    """What tells this job from others: all that is sent."""
    digest = hashlib.sha256(json.dumps(words).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


async def _follow(client: Any, job: str) -> None:
    """Print a job's log as it is written, to its end; a connection that is lost is taken up again."""
    printed, heard = 0, time.monotonic()
    while True:
        place = 0
        try:
            async for text in client.tail_job_logs(job):  # from the beginning, each time
                place, heard = place + len(text), time.monotonic()
                if place > printed:
                    print(text[printed - place :], end="", flush=True)
                    printed = place
            if client.get_job_status(job).is_terminal():
                return
            heard = time.monotonic()
        except Exception as error:  # whatever the libraries below call it: nobody answers
            if _unknown(client, job):
                raise StepFailed(
                    f"{client.get_address()} knows no job {job} any more: its head has begun anew, and the job is gone"
                ) from error
            if time.monotonic() - heard > LOST:
                _lost(client, job, error)
        await asyncio.sleep(1.0)


def _unknown(client: Any, job: str) -> bool:
    """Whether a server answers, and says that it has no such job."""
    try:
        client.get_job_status(job)
    except Exception as error:
        return "status code 404" in str(error)
    return False


def _end(client: Any, job: str, report: Path | str) -> None:
    """Say how a job ended and where its report is, or what makes one; raises what a run here would have raised."""
    try:
        info = client.get_job_info(job)
        log = client.get_job_logs(job)
    except Exception as error:
        _lost(client, job, error)
    if info.status == "SUCCEEDED":
        seconds = ((info.end_time or 0) - (info.start_time or 0)) / 1000
        where = "the report, on the cluster" if isinstance(report, Path) else "the report"
        print(f"job {job}: done in {seconds:.0f} s; {where}: {report}")
        return
    if info.status == "STOPPED":
        raise StepFailed(f"job {job} was stopped")
    said = [line for line in log.splitlines() if line.startswith(("error: ", "failed: "))]
    reason = said[-1].partition(": ")[2] if said else _line(info.message or "it says no reason")
    if info.driver_exit_code == 2:
        raise UserError(f"job {job}: {reason}")
    raise StepFailed(f"job {job}: {reason}")


def _lost(client: Any, job: str, error: Exception) -> NoReturn:
    raise StepFailed(
        f"{client.get_address()} does not answer any more ({_line(error)}); the job {job} may still run"
    ) from error


def _line(said: Any) -> str:
    """The first line of what a library says."""
    return next(iter(str(said).strip().splitlines()), type(said).__name__)
