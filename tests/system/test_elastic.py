"""A training on a Ray cluster whose nodes die and join."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny import ROOT

SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster as Nodes
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import stop_ray
from sparring.workflows.distributed.worker_group import train_together
from tests.support.workers import until_alone

out = Path(sys.argv[1])
nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
first, second = (nodes.add_node(num_cpus=1) for _ in range(2))
nodes.wait_for_nodes()
os.environ["RAY_ADDRESS"] = nodes.address
profile = {"address": "auto", "device": "cpu", "retries": 0, "train": {"workers": 2, "threads": 1}}
machine = resolve_machine(clusters.Cluster.model_validate(profile))
log = out / "log"

def remove_when_begun():
    while not log.exists():
        time.sleep(0.1)
    nodes.remove_node(first, allow_graceful=False)

threading.Thread(target=remove_when_begun, daemon=True).start()
starts = [train_together(until_alone, {"log": str(log)}, machine, storage=out)]
nodes.add_node(num_cpus=1)
nodes.wait_for_nodes()
starts.append(train_together(until_alone, {"log": str(log), "enough": 2}, machine, storage=out))
print(json.dumps(starts))
stop_ray()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_goes_on_with_the_workers_that_are_left(tmp_path: Path) -> None:
    """One of two nodes dies. The profile allows no retry, and none is needed. The next training has a new node."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[2, 1], [2, 1, 2]]
