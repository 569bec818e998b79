"""Jobs on a real Ray cluster of one node, with token authentication and its dashboard on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from tests.support import tiny
from tests.support.tiny import ROOT, Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOKEN = "a-token-of-sixteen-bytes-or-more-for-the-tests"


@dataclass(frozen=True)
class Head:
    """A cluster: its job server, and what a user who may submit has in the environment."""

    address: str
    environment: dict[str, str]
    folder: Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(address: str) -> bool:
    """Whether a job server is there, whatever it answers."""
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=1)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def below(process: int) -> list[int]:
    """A process and all that it started, by id."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    pids = [process]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


@contextmanager
def started(port: int) -> Iterator[Head]:
    """A head with its job server at a port; gone at the end as by a power cut, if it is not yet."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: sockets have a path of at most 107 bytes
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SPARRING_"))}
    environment = {**clean, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1"}
    binaries = Path(sys.executable).parent
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    ports = [free_port() for _ in range(2)]
    command = [
        str(binaries / "ray"),
        "start",
        "--head",
        "--block",
        f"--port={ports[0]}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={port}",
        "--dashboard-agent-listen-port=0",
        f"--ray-client-server-port={ports[1]}",
        f"--temp-dir={folder}",
        "--num-cpus=4",
        f"--object-store-memory={200 * 2**20}",
        "--disable-usage-stats",
    ]
    with (folder / "said").open("w") as log:
        # Not in the repository: the code must come with the job.
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(300):
            if answers(address):
                break
            assert process.poll() is None, (folder / "said").read_text()
            time.sleep(0.2)
        yield Head(address, environment, folder)
    finally:
        for pid in below(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with started(free_port()) as cluster:
        yield cluster


@pytest.fixture
def place(played: Place, beir: Path, encoder: Path, tmp_path: Path) -> Place:
    """A toy experiment with its collection and BM25's index made, and a profile for the cluster."""
    place = tiny.place(tmp_path / "shared", tiny.dpr(beir, encoder))
    for label in ("data", "bm25 index"):
        shutil.copytree(played.artifact(label), place.store / played.artifact(label).name)
    profile = {
        "mode": "ray",
        "device": "cpu",
        "max_tokens_per_pass": 256,
        "retries": 0,
        "train": {"workers": 1, "threads": 1},
        "map": {"workers": 2, "threads": 1},
    }
    tiny.write(place.folder / "cluster.yaml", profile)
    return place


def words(place: Place, head: Head, *more: str) -> list[str]:
    words = place.words("submit", "--address", head.address, "--cluster", str(place.folder / "cluster.yaml"), *more)
    return [sys.executable, "-m", "workflows", *words]


def submitted(place: Place, head: Head, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**head.environment, **environment}
    return subprocess.run(
        words(place, head, *more), cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


def ray(head: Head, *command: str) -> str:
    """What one of Ray's own commands says."""
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_whole_run(place: Place, head: Head) -> None:
    """Followed to its end; every artifact of its plan is there, and no secret in what is said or kept."""
    done = submitted(place, head)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(rf"job tiny-[0-9a-f]{{6}}: done in \d+ s; .*: {place.runs}/tiny/report\.html", lines[-1])
    assert re.fullmatch(rf"job tiny-[0-9a-f]{{6}} was sent; Ray's dashboard: {head.address}\n", done.stderr)
    assert any(line.startswith("toy, test split: 4 queries") for line in lines)
    places = f"--store {place.store} --runs {place.runs}"
    assert f'try:    python -m workflows {places} search {place.config} "your question"' in lines
    assert not [line for line in lines if "\r" in line or "\033" in line]  # no bars that are drawn in place
    assert len(lines) < 150
    wanted = loading.read(place.config, [], place.runs).wanted
    assert {path.name for path in place.store.iterdir()} == {node.name for node in graph(wanted)}
    assert {"BM25", "start model", "retriever"} <= {row["system"] for row in place.metrics()["rows"]}
    assert (place.runs / "tiny" / "report.html").exists()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    record = json.loads((place.artifact("retriever") / "artifact.json").read_text())
    assert record["code"].get("commit") == (commit.stdout.strip() or None)
    assert record["cluster"]["address"] == "auto"
    assert TOKEN not in done.stdout + done.stderr
    for path in (*place.folder.rglob("*"), *head.folder.rglob("*")):
        if path.is_file() and path != head.folder / "token":
            assert TOKEN.encode() not in path.read_bytes(), path
    again = submitted(place, head)
    assert again.returncode == 0
    assert "nothing to run" in again.stdout


def test_a_run_of_the_images_own_code(place: Place, head: Head) -> None:
    """As cluster/rayjob.yaml has it: nothing is sent, the code is where the entrypoint goes to."""
    profile = yaml.safe_load((place.folder / "cluster.yaml").read_text())
    path = tiny.write(place.folder / "joining.yaml", {**profile, "address": "auto"})
    run = place.words("run", "--until", "start vectors")
    run[run.index("--cluster") + 1] = str(path)
    entrypoint = f"cd {ROOT} && python -m workflows {shlex.join(run)}"
    output = ray(head, "ray", "job", "submit", "--address", head.address, "--", "sh", "-c", entrypoint)
    assert "succeeded" in output.lower(), output
    assert list(place.store.glob("encode_documents-*/artifact.json"))


def test_a_tuning(place: Place, head: Head) -> None:
    """Its trials run on the cluster; page and best config are where the job was told to keep its runs."""
    space = {"train.learning_rate": {"grid": [1e-3, 1e-9]}}
    tree = yaml.safe_load(place.config.read_text())
    tiny.write(place.config, {**tree, "tune": {"measure": "RR@10", "systems": ["retriever"], "space": space}})
    done = submitted(place, head, "--tune")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials: 2 done" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"the report, on the cluster: {place.runs}/tiny/tune.html")
    assert {path.name for path in (place.runs / "tiny").iterdir()} >= {"tune.html", "tiny-best.yaml", "trials.json"}
    assert len(list(place.store.glob("ingest-*/artifact.json"))) == 1


def test_a_mistake_that_shows_in_the_job(place: Place, head: Head) -> None:
    shutil.rmtree(place.store)
    done = submitted(place, head, "--set", "data.path=nowhere/here")
    assert done.returncode == 2
    assert re.fullmatch(
        r"note: nowhere/here/corpus\.jsonl: the job looks for it in its own folder, .*\n"
        r"job tiny-\w+-[0-9a-f]{6} was sent; .*\n"
        r"error: job tiny-\w+-[0-9a-f]{6}: data: source missing: .*\n",
        done.stderr,
    )


def test_a_job_that_fails(place: Place, head: Head) -> None:
    """The step's own words, and status 1; what was finished stays finished."""
    (data,) = place.store.glob("ingest-*")
    whole = (data / "documents.parquet").read_bytes()
    (data / "documents.parquet").write_bytes(b"half a file")
    done = submitted(place, head)
    assert done.returncode == 2
    message = rf"{data}/documents\.parquet: .*; remove {data} and make it again: repeat the command"
    assert re.search(rf"error: job tiny-[0-9a-f]{{6}}: .*{message}\n", done.stderr)
    (data / "documents.parquet").write_bytes(whole)
    (data / "queries.parquet").unlink()
    done = submitted(place, head)
    assert done.returncode == 1
    _, failed, last = done.stderr.splitlines()
    assert re.fullmatch(r"failed: job tiny-[0-9a-f]{6}: step '.*' failed: .*\(traceback: .*/failure\.txt\)", failed)
    assert last == "Finished steps are kept. Fix the cause, then repeat the command to resume."
    assert (data / "artifact.json").exists()


def test_a_store_on_this_machine_alone(place: Place, head: Head) -> None:
    command = words(place, head)
    command[command.index("--store") + 1] = "/of-nobody/sparring/store"
    done = subprocess.run(command, cwd=ROOT, env=head.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no /of-nobody/sparring on the cluster; accepted: " in done.stderr.splitlines()[-1]


def test_a_cluster_that_is_too_small(place: Place, head: Head) -> None:
    tree = yaml.safe_load((place.folder / "cluster.yaml").read_text())
    tiny.write(place.folder / "cluster.yaml", {**tree, "train": {"workers": 64}, "wait_seconds": 10**6})
    done = submitted(place, head)  # nothing adds nodes to this cluster: it is not waited for
    assert done.returncode == 2
    assert "waiting for nodes" not in done.stdout
    assert "64 workers with a CPU each are asked for, and there are 4 CPUs" in done.stderr.splitlines()[-1]


def test_who_has_no_token(place: Place, head: Head) -> None:
    done = submitted(place, head, RAY_AUTH_MODE="disabled")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: --address {head.address}: the cluster asks for a token; set RAY_AUTH_MODE=token, and "
        "RAY_AUTH_TOKEN_PATH to the file that holds it\n"
    )


def test_who_has_another_token(place: Place, head: Head, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("swordfish")
    done = submitted(place, head, RAY_AUTH_TOKEN_PATH=str(wrong))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --address {head.address}: the cluster does not accept the token in {wrong}\n"
    assert "swordfish" not in done.stderr


def test_rays_own_variables_do_not_move_the_address(place: Place, head: Head) -> None:
    done = submitted(place, head, "--until", RAY_ADDRESS="http://127.0.0.1:9")
    assert done.returncode == 2  # no such option: a job is a whole run
    done = submitted(place, head, "--no-wait", RAY_ADDRESS="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    stop = done.stdout.splitlines()[1].removeprefix("stop it: ")
    ray(head, *stop.split())


def test_interrupted_it_runs_on(place: Place, head: Head) -> None:
    """Ctrl-C stops following; the repeated command follows again; Ray's own command stops it."""
    with subprocess.Popen(
        words(place, head), cwd=ROOT, env=head.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[1/"):
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    sent, *_, runs, follow, stop = err.splitlines()
    job = sent.split()[1]
    assert runs == f"The job {job} is still running. Repeat the command to follow it."
    assert follow == f"its log: ray job logs --address {head.address} --follow {job}"
    assert stop == f"stop it: ray job stop --address {head.address} {job}"
    assert "RUNNING" in ray(head, "ray", "job", "status", "--address", head.address, job)
    again = submitted(place, head, "--no-wait")
    assert again.stderr == f"job {job} is running already; Ray's dashboard: {head.address}\n"
    with subprocess.Popen(
        words(place, head), cwd=ROOT, env=head.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == again.stderr
        assert f"Job '{job}' was stopped" in ray(head, *stop.removeprefix("stop it: ").split())
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.startswith(f"failed: job {job} was stopped\n")


def test_a_head_that_dies(place: Place) -> None:
    """Who follows a job is told that it is gone, and the repeated command resumes the run at a new head."""
    port, longer = free_port(), ["--set", "train.updates=60"]
    with started(port) as first:
        job = subprocess.Popen(
            words(place, first, *longer), cwd=ROOT, env=first.environment, stderr=subprocess.PIPE, text=True
        )
        while not list(place.store.glob("train-*/metrics.jsonl")):
            assert job.poll() is None
            time.sleep(0.1)
        assert not list(place.store.glob("train-*/artifact.json"))
    with started(port) as second:
        _, output = job.communicate()
        assert job.returncode == 1
        assert re.search(r"failed: .* knows no job tiny-\w+-\w+ any more: the cluster's head was restarted", output)
        assert output.splitlines()[-1] == "Finished steps are kept. Fix the cause, then repeat the command to resume."
        before = {path: path.stat().st_mtime_ns for path in place.store.glob("*/artifact.json")}
        assert submitted(place, second, *longer).returncode == 0
        assert len(before) > 2
        assert before == {path: path.stat().st_mtime_ns for path in before}
        assert list(place.store.glob("train-*/artifact.json"))
