"""Another program holds a part of every node of a cluster: a run takes what is free, or says what it waits for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.tiny import ROOT, Place

TENANT = """
import json, os, sys, ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
nodes, held = json.loads(sys.argv[1]), float(sys.argv[2])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": nodes[0]})
for cpus in nodes[1:]:
    cluster.add_node(num_cpus=cpus)
cluster.wait_for_nodes()
ray.init(address=cluster.address, namespace="others", log_to_driver=False, logging_level="ERROR")
class Tenant:
    def ready(self): pass
for node in ray.nodes():
    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    options = {"name": node["NodeID"], "lifetime": "detached", "scheduling_strategy": place}
    ray.get(ray.remote(num_cpus=held)(Tenant).options(**options).remote().ready.remote())
ray.shutdown()
os.environ["RAY_ADDRESS"] = cluster.address
from sparring.workflows.command_line import main
status = main(sys.argv[3:])
cluster.shutdown()
sys.exit(status)
"""


PROFILE: dict[str, Any] = {
    "mode": "ray",
    "address": "auto",
    "device": "cpu",
    "retries": 0,
    "max_tokens_per_pass": 256,
    "map": {"workers": 2, "threads": 1},
    "java": {"workers": 1, "threads": 1},
    "train": {"workers": 1, "threads": 1},
}


def run_beside(held: float, command: str, place: Place, nodes: tuple[int, ...] = (2,)) -> tuple[int, str]:
    """Run a command on nodes of so many CPUs beside a program that holds some of each. Return status and errors."""
    words = [sys.executable, "-c", TENANT, json.dumps(nodes), str(held), *place.words(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_index_is_built_beside_a_program_that_holds_half_a_cpu(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """A task that asked for every core of the node would wait for ever."""
    experiment = {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}}
    status, output = run_beside(0.5, "run", tiny.place(tmp_path, experiment, **PROFILE, wait_seconds=300))
    assert status == 0, output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("nodes", "held"), [((2,), 0.0), ((4,), 0.0), ((2, 2), 0.5)])
def test_a_tuning_with_an_index_finishes(
    nodes: tuple[int, ...], held: float, tmp_path: Path, beir: Path, encoder: Path
) -> None:
    """Its trials hold no part of a CPU that their steps need, and the profile leaves the workers of all steps open."""
    space = {"train.learning_rate": {"grid": [1e-3, 1e-9]}}
    section = {"measure": "RR@10", "systems": ["retriever"], "space": space}
    experiment = {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}, "tune": section}
    open_ended = {key: {"workers": None, "threads": 1} for key in ("map", "java", "train")}
    place = tiny.place(tmp_path, experiment, **{**PROFILE, **open_ended}, wait_seconds=120)
    status, output = run_beside(held, "tune", place, nodes)
    assert status == 0, output
    assert [trial["state"] for trial in json.loads((place.runs / "tiny" / "trials.json").read_text())["trials"]] == [
        "done",
        "done",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_without_a_free_cpu_says_what_it_waits_for_and_ends(tmp_path: Path, beir: Path, encoder: Path) -> None:
    experiment = {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}}
    status, output = run_beside(2, "run", tiny.place(tmp_path, experiment, **PROFILE, wait_seconds=12))
    assert status == 1
    assert "waiting for 1 CPU of one node, at most 12 s (wait_seconds in the profile)" in output
    assert "no node had 1 CPU free for a worker of this step within 12 s" in output
