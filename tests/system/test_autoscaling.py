"""A cluster whose nodes with GPUs start when a step needs them, by Ray's autoscaler. The nodes are processes here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.tiny import ROOT
from tests.system.test_submitted import below, free_port

STEPS = """
import json, sys, time
from pathlib import Path
import ray
from sparring.workflows.distributed import cluster as clusters, ray_train, session
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from sparring.workflows.distributed.worker_group import train_together
from tests.support.workers import WhereItRuns, fit_without_gpus, where

def gpus():
    return ray.cluster_resources().get("GPU", 0)

out = Path(sys.argv[1])
ray_train.fit = fit_without_gpus
cluster = clusters.Cluster(address=sys.argv[2], device="auto", wait_seconds=300, train={"workers": None})
machine = resolve_machine(cluster, out / "store")
found = {"cuda": machine.cuda, "gpus": machine.gpus}
(out / "models").mkdir()
shards = row_shards(2, 1, "{:02d}")
map_shards(WhereItRuns, shards, out=out / "models", machine=machine, pool=cluster.map, unit="x", gpu=machine.cuda)
end = time.monotonic() + 300
while gpus() and time.monotonic() < end:  # a step without GPUs: their node goes
    time.sleep(1)
found["left"] = gpus()
train_together(where, {"out": str(out)}, machine.for_batch(4), storage=out)
print(json.dumps(found))
session.stop_ray()
"""


def _listens(port: int) -> bool:
    """Tell whether a program listens at a port of this machine."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a head without processors, and an autoscaler that may start one node with a GPU.

    `ray.cluster_utils.AutoscalingCluster` would begin with `ray stop`, which ends every Ray of the machine.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: sockets have a path of at most 107 bytes
    port = free_port()
    config = {
        "cluster_name": "growing",
        "max_workers": 1,
        "upscaling_speed": 20,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "gpus": {"resources": {"CPU": 3, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 1},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }
    (folder / "growing.json").write_text(json.dumps(config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SPARRING_"))}
    settings = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_NODE_TYPE_NAME": "ray.head.default",  # as Ray's launcher names it
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "f" * 51 + "00000",
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        *(str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--num-cpus=0", "--num-gpus=0"),
        *(f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"),
        *(f"--temp-dir={folder}", f"--autoscaling-config={folder / 'growing.json'}"),
        *("--dashboard-agent-listen-port=0", f"--object-store-memory={100 * 2**20}"),
    ]
    with (folder / "said").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env={**clean, **settings}, stdout=log, stderr=log)
    end = time.monotonic() + 120
    while not _listens(port) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        for pid in below(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_gets_a_gpu_that_is_not_there_yet_and_gets_it_again(head: str, tmp_path: Path) -> None:
    """With `device: auto` and a group of GPU nodes that starts at 0. Between steps the node may go."""
    command = [sys.executable, "-c", STEPS, str(tmp_path), head]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"cuda": True, "gpus": 1.0, "left": 0}
    waits = [line for line in done.stderr.splitlines() if line.startswith("waiting for ")]
    assert "there are 0 GPUs, and training asks for 1 (train.workers)" in waits[0]
    assert "there are 0 GPUs, and this step needs 1" in waits[1]
    shards = [json.loads(path.read_text()) for path in (tmp_path / "models").glob("[0-9]*")]
    assert [len(shard["gpus"]) for shard in shards] == [1, 1]
    trained = json.loads((tmp_path / "rank-0").read_text())
    assert len(trained["gpus"]) == 1
