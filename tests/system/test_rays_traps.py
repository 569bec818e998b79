"""What goes wrong around a run on a cluster of Ray's: others fill its object store, its head is small, its version is
another. Deaths of workers, nodes and drivers: test_kill, test_scale_out, test_submitted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.tiny import ROOT, Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROFILE: dict[str, Any] = {
    "mode": "ray",
    "address": "auto",
    "device": "cpu",
    "retries": 0,
    "map": {"workers": 2, "threads": 1},
    "java": {"workers": 1, "threads": 1},
    "train": {"workers": 1, "threads": 1},
}

FILLING = """
import sys
import numpy as np
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
held = [ray.put(np.full(2**21, number, dtype=np.int64)) for number in range(16)]
print("full", flush=True)
sys.stdin.readline()
print(sum(int(ray.get(one).sum()) for one in held))
"""

DRILL = f"""
import json, os, subprocess, sys
os.environ["RAY_worker_niceness"] = "0"
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
node = cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
other = subprocess.Popen([sys.executable, "-c", {FILLING!r}, cluster.address], stdin=-1, stdout=-1, text=True)
assert other.stdout.readline() == "full\\n"
from ray._private.internal_api import memory_summary
from sparring.workflows.command_line import main
stats = [memory_summary(cluster.address, stats_only=True)]
status = main(sys.argv[1:])
stats.append(memory_summary(cluster.address, stats_only=True))
said, _ = other.communicate("go on\\n")
print(json.dumps({{"status": status, "stats": stats, "said": int(said), "node": node.node_id[:8]}}))
"""

OTHER_VERSION = """
import os, sys
from ray.cluster_utils import Cluster
os.environ["RAY_ADDRESS"] = Cluster(initialize_head=True, head_node_args={"num_cpus": 4}).address
import ray
ray.__version__ = "2.59.0"
from sparring.workflows.command_line import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def disk(toys: Path, beir: Path, encoder: Path) -> Place:
    """A finished run in one process."""
    place = tiny.place(toys / "traps", tiny.dpr(beir, encoder))
    assert place("run") == 0
    return place


def drilled(script: str, place: Place) -> subprocess.CompletedProcess[str]:
    """A run in a process that starts its cluster first."""
    command = [sys.executable, "-c", script, *place.words("run")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_object_store_that_others_have_filled(disk: Place, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """It spills what they hold. The run keeps nothing in it, ends as on a disk, and leaves them what is theirs; and the
    head, which has no processors to give, has no work of its steps."""
    place = tiny.place(tmp_path / "full", tiny.dpr(beir, encoder), **PROFILE)
    done = drilled(DRILL, place)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["status"] == 0
    assert report["said"] == sum(2**21 * number for number in range(16))
    spilled = [int(re.findall(r"Spilled (\d+) MiB", stats)[0]) for stats in report["stats"]]
    assert spilled[0] >= 128
    assert spilled[1] <= 256  # what the other program holds, and nothing else
    assert int(re.findall(r"(\d+) objects", report["stats"][1])[0]) <= 16
    nodes = {name for record in tiny.records(place.store) for name in record["nodes"] if "(" in name}
    assert {re.findall(r"\((.*)\)", name)[0] for name in nodes} == {report["node"]}
    same = {
        name: digest
        for name, digest in tiny.results(disk.store).items()
        if name.startswith(("lucene_search-", "mine-"))
    }
    assert same
    assert {name: tiny.results(place.store)[name] for name in same} == same


def test_a_cluster_of_another_version(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """One line says both versions and what to do; nothing has begun."""
    place = tiny.place(tmp_path / "other", tiny.dpr(beir, encoder), **PROFILE)
    done = drilled(OTHER_VERSION, place)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.match(r"error: cluster: address: auto: Ray [\d.]+ with Python [\d.]+ runs there, and Ray 2\.59\.0 ", line)
    assert "Traceback" not in done.stderr
    assert list(place.store.glob("*/artifact.json")) == []
