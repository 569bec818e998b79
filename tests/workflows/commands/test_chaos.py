"""`chaos`: a run that is killed and resumed is compared; what it must not do is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sparring.workflows.chaos import joined, victims
from sparring.workflows.chaos.killer import Broken, Kill, Killer, Run
from sparring.workflows.command_line import main
from sparring.workflows.commands.chaos import table
from sparring.workflows.distributed.cluster import Cluster, TrainPool
from tests.support import tiny
from tests.support.tiny import ROOT, Said


def slow_run(store: Path, status: int) -> None:
    """Three artifacts, one after another; those that are there are not made again."""
    for number in range(3):
        artifact = store / f"step-{number}"
        artifact.mkdir(parents=True, exist_ok=True)
        if not (artifact / "artifact.json").exists():
            (artifact / "lock").touch()
            time.sleep(0.2)
            (artifact / "artifact.json").touch()
    sys.exit(status)


class Slow(Run):
    """A run of three steps that take a moment, and end with a status."""

    status = 0

    def start(self) -> BaseProcess:
        process = get_context("fork").Process(target=slow_run, args=(self.store, self.status))
        process.start()
        return process


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path, tmp_path, tmp_path)


def test_a_command_is_repeated_until_its_run_is_finished(slow: Slow) -> None:
    kills: list[Kill] = []
    starts = Killer([victims.DRIVER], 4, 1, kills.append, artifacts=3, seconds=0.3).finish(slow, 60.0)
    assert 0 < len(kills) <= 4
    assert starts == len(kills) + 1
    assert slow.finished() == 3
    assert {kill.step for kill in kills} <= {"step", ""}


def test_a_command_that_fails_by_itself_is_broken(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "status", 1)
    with pytest.raises(Broken, match=r"ended with status 1 when nothing was killed: .*/log"):
        Killer([victims.DRIVER], 0, 1, print).finish(slow, 60.0)


def test_a_command_that_does_not_end_is_broken(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    process = get_context("fork").Process(target=time.sleep, args=(600,))
    monkeypatch.setattr(Slow, "start", lambda run: process.start() or process)
    with pytest.raises(Broken, match="has not ended after 0 s"):
        Killer([victims.DRIVER], 0, 1, print).finish(slow, 0.1)
    assert process.exitcode == -signal.SIGKILL


def test_a_table_says_what_was_hit_and_what_was_done_twice() -> None:
    kills = [Kill("driver", "train", 1.0, 7), Kill("driver", "", 0.1, 0), Kill("Java", "lucene_index", 2.0, 0)]
    lines = [re.split(r" {2,}", line.strip()) for line in table(kills).strip().splitlines()]
    assert lines == [
        ["hit", "kills", "updates done twice", "in"],
        ["driver", "2", "7", "train 1, between steps 1"],
        ["Java", "1", "0", "lucene_index 1"],
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kills", "0"], "--kills: got 0; accepted: 1 or more"),
        (["--keep", "{full}"], "--keep {full}: is not an empty folder; accepted: an empty or a new one"),
        (
            ["--keep", "{full}/file/x"],
            "{full}/file/x: cannot be written, as {full}/file is a file; accepted: another FOLDER",
        ),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], says: str, tmp_path: Path, said: Said) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    words = [word.format(full=tmp_path / "full") for word in words]
    assert main(["--store", str(tmp_path / "store"), "chaos", *words]) == 2
    assert said()[1] == f"error: {says.format(full=tmp_path / 'full')}\n"
    assert os.listdir(tmp_path) == ["full"]


def test_a_store_on_s3_is_refused(said: Said) -> None:
    assert main(["--store", "s3://bucket/prefix", "chaos"]) == 2
    assert "--store s3://bucket/prefix: chaos tries stores in directories" in said()[1]


def test_a_slow_look_for_a_process_is_followed_by_a_long_pause(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tasks that look on a cluster take no more than a tenth of its time."""
    monkeypatch.setattr("sparring.workflows.chaos.killer.PATIENCE", 1.0)
    looks = list[int]()

    def find(driver: int, kind: str) -> list[Any]:
        looks.append(driver)
        time.sleep(0.05)
        return []

    Killer([victims.NODE], 1, 1, print, artifacts=3, seconds=0.3, find=find).finish(slow, 60.0)
    assert 1 <= len(looks) <= 4


# A cluster that was joined


@contextmanager
def processes(*jobs: str) -> Iterator[list[int]]:
    """Processes of this one, as of a raylet, each of a job of Ray's; "" is of none."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "ray::Waiting"]
    clean = {name: value for name, value in os.environ.items() if name != joined.JOB}
    environments = [{**clean, **({joined.JOB: job} if job else {})} for job in jobs]
    running = [subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) for environment in environments]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_the_processes_of_a_run_on_this_machine_are_found_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(victims.VICTIMS, "waiting", victims.Victim(("ray::", "Waiting"), 1))
    with processes("", "") as running:
        assert {process.pid for process in victims.find(os.getpid(), "waiting")} == set(running)
        assert victims.find(os.getpid(), victims.HEAD) == []
    assert [process.pid for process in victims.find(os.getpid(), victims.DRIVER)] == [os.getpid()]


def test_a_node_names_only_the_processes_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(joined.RAYLET, str(os.getpid()))
    with processes("01000000", "02000000", joined.NO_JOB, "") as running:
        node = joined.look("01000000", "02000000")
        assert [process for process, _, _ in node.processes] == running[:1]
        assert "ray::Waiting" in node.processes[0][2]
        assert node.raylet[0] == os.getpid()
        assert not node.is_shared
        assert joined.look("01000000", "07000000").is_shared


def test_a_process_is_killed_and_not_its_successor() -> None:
    with processes("01000000") as (running,):
        started = psutil.Process(running).create_time()
        assert not joined.kill_process(running, started - 1)
        assert psutil.Process(running).is_running()
        assert joined.kill_process(running, started)
    assert not joined.kill_process(running, started)


class Nodes:
    """A Ray cluster of a head and two nodes with two CPUs each."""

    def nodes(self) -> list[dict[str, Any]]:
        members = [
            ("head", {"node:__internal_head__": 1.0, "CPU": 2.0}),
            ("one", {"CPU": 2.0}),
            ("other", {"CPU": 2.0}),
        ]
        return [
            {"Alive": True, "NodeID": name, "NodeManagerAddress": f"10.0.0.{number}", "Resources": resources}
            for number, (name, resources) in enumerate(members)
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_job_id=lambda: "02000000")


@pytest.mark.parametrize(
    ("workers", "foreign", "driver", "killed"),
    [
        (1, "", "", {"one", "other"}),
        (4, "", "", {"one", "other"}),
        (5, "", "", set()),
        (1, "one", "", {"other"}),
        (1, "", "10.0.0.2", {"one"}),
        (1, "", "10.0.0.0", {"one", "other"}),
    ],
)
def test_a_node_that_others_use_or_that_is_needed_is_spared(
    workers: int, foreign: str, driver: str, killed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job has a worker on a node, or its driver; the head's machine may have drivers, and is never killed."""
    jobs = [{"JobID": "01000000", "DriverPid": 7, "DriverIPAddress": "10.0.0.0"}]
    jobs += [{"JobID": "03000000", "DriverPid": 8, "DriverIPAddress": driver}] if driver else []
    mine = [(11, 1.0, "ray::RayTrainWorker"), (12, 1.0, "ray::IDLE")]
    monkeypatch.setattr(joined, "ray_session", lambda cluster: Nodes())
    monkeypatch.setattr(joined, "_jobs", lambda: jobs)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.0")
    monkeypatch.setattr(joined, "_on", lambda node, *_: joined.OnNode(mine, (99, 1.0, ""), node == foreign))
    finder = joined.Finder(Cluster(address="auto", device="cpu", train=TrainPool(workers=workers)))
    assert {target._node for target in finder.find(7, victims.NODE)} == killed
    assert [target._process for target in finder.find(7, "train worker")] == [11] * 3
    assert finder.find(12345, "train worker") == []  # it has not joined yet


TENANT = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
class Tenant:
    def ready(self): return 7
held = ray.remote(num_cpus=1)(Tenant).remote()
print(ray.get(held.ready.remote()), flush=True)
input()
print(ray.get(held.ready.remote()), flush=True)
"""

JOINED = f"""
import os, subprocess, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1}})
for _ in range(2):
    cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
other = subprocess.Popen([sys.executable, "-c", {TENANT!r}], stdin=-1, stdout=-1, text=True)
assert other.stdout.readline() == "7\\n"
from sparring.workflows.command_line import main
status = main(sys.argv[1:])
said, _ = other.communicate("\\n")
cluster.shutdown()
sys.exit(status if said == "7\\n" else 7)
"""


KILLS = 4
"""Few, since each start of a run on three nodes takes most of a minute on two cores."""


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_nothing_is_lost_on_a_cluster_that_was_joined(tmp_path: Path) -> None:
    """Workers of all its nodes, and a node, are killed; another program on the cluster notices nothing."""
    profile = {**tiny.INLINE, "mode": "ray", "address": "auto", "device": "cpu", "max_tokens_per_pass": 4096}
    cluster = tiny.write(tmp_path / "cluster.yaml", {**profile, "wait_seconds": 120})
    words = ["--store", str(tmp_path / "store"), "chaos", "--kills", str(KILLS), "--cluster", str(cluster)]
    command = [sys.executable, "-c", JOINED, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = re.findall(r"^ +\d+/\d+  ([\w ]+) killed ", done.stdout, re.M)
    assert len(kinds) == KILLS
    assert set(kinds) - {victims.DRIVER}
    assert done.stdout.endswith("nothing lost, nothing wrong\n")


@pytest.mark.kill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("profile", "kills"), [({}, 12), ({"mode": "ray", "object_store_mb": 100}, 6)])
def test_nothing_is_lost(profile: dict[str, object], kills: int, tmp_path: Path, said: Said) -> None:
    """The command as a user has it; the folder goes when all is well."""
    cluster = tiny.write(tmp_path / "cluster.yaml", {**tiny.INLINE, "max_tokens_per_pass": 4096, **profile})
    words = ["chaos", "--kills", str(kills), "--cluster", str(cluster)]
    assert main(["--store", str(tmp_path / "store"), *words]) == 0
    out = said()[0]
    assert len(re.findall(r"^ +\d+/\d+  [\w ]+ killed (in \w+|between steps), ", out, re.M)) == kills
    assert out.endswith("nothing lost, nothing wrong\n")
    assert os.listdir(tmp_path) == ["cluster.yaml"]


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_what_is_wrong_is_named_and_kept(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sparring.workflows.commands.chaos.first_difference", lambda store, second: "train-1/model: differs"
    )
    cluster = tiny.write(tmp_path / "cluster.yaml", tiny.INLINE)
    with pytest.raises(SystemExit, match="1"):
        main(["--store", str(tmp_path / "store"), "chaos", "--kills", "1", "--cluster", str(cluster)])
    out = said()[0]
    assert "WRONG: " in out
    assert "/run-1/store/train-1/model: differs\neverything is kept in " in out
    assert list(tmp_path.glob("chaos-*/run-1/store/*"))
