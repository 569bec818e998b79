"""Another program holds a part of every node of a cluster: a run takes what is free, or says what it waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.tiny import ROOT

TENANT = """
import os, sys, ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
ray.init(address=cluster.address, namespace="others", log_to_driver=False, logging_level="ERROR")
class Tenant:
    def ready(self): pass
tenant = ray.remote(num_cpus=float(sys.argv[1]))(Tenant).options(name="tenant", lifetime="detached").remote()
ray.get(tenant.ready.remote())
ray.shutdown()
os.environ["RAY_ADDRESS"] = cluster.address
from sparring.workflows.command_line import main
status = main(sys.argv[2:])
cluster.shutdown()
sys.exit(status)
"""


def run_beside(cpus: float, tmp_path: Path, beir: Path, encoder: Path, wait_seconds: int) -> tuple[int, str]:
    """Run DPR with an index on a node of two CPUs beside a program that holds some. Return status and errors."""
    profile = {
        "mode": "ray",
        "address": "auto",
        "device": "cpu",
        "retries": 0,
        "wait_seconds": wait_seconds,
        "max_tokens_per_pass": 256,
        "map": {"workers": 2, "threads": 1},
        "java": {"workers": 1, "threads": 1},
        "train": {"workers": 1, "threads": 1},
    }
    place = tiny.place(tmp_path, {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}}, **profile)
    command = [sys.executable, "-c", TENANT, str(cpus), *place.words("run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_index_is_built_beside_a_program_that_holds_half_a_cpu(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """A task that asked for every core of the node would wait for ever."""
    status, said = run_beside(0.5, tmp_path, beir, encoder, wait_seconds=300)
    assert status == 0, said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_without_a_free_cpu_says_what_it_waits_for_and_ends(tmp_path: Path, beir: Path, encoder: Path) -> None:
    status, said = run_beside(2, tmp_path, beir, encoder, wait_seconds=12)
    assert status == 1
    assert "waiting for 1 CPU of one node, at most 12 s (wait_seconds in the profile)" in said
    assert "no node had 1 CPU free for a worker of this step within 12 s" in said
