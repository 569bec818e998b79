"""Maps over shards while nodes die and join, beside another tenant, and with processes that stay for the next step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from tests.support import workers
from tests.support.tiny import ROOT

BEGIN = """
import json, os, sys, threading, time, traceback
from pathlib import Path
import ray
from ray.cluster_utils import Cluster as Nodes
from sparring.components import timing
from sparring.workflows.distributed import cluster as clusters, ray_map, resources
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import ray_session, stop_ray
from sparring.workflows.distributed.shards import map_shards, row_shards
from tests.support import workers

out = Path(sys.argv[1])
said = {}

def mapped(name, machine, count=24, gpu=None, worker=workers.Noter, **task):
    (out / name).mkdir(parents=True)
    gpu = machine.cuda if gpu is None else gpu
    shards = row_shards(count, 1, "part-{}", number=name, **task)
    timing.drain()
    map_shards(worker, shards, out=out / name, machine=machine, pool=machine.cluster.map, unit="x", gpu=gpu,
               log=str(out / (name + ".log")))
    return sorted({interval.node for interval in timing.drain() if interval.kind == "compute" and interval.node})

def processes(name):
    return sorted({line.split()[1] for line in (out / (name + ".log")).read_text().splitlines() if line != "closed"})

def failure(*arguments, **task):
    try:
        mapped(*arguments, **task)
    except RuntimeError as error:
        return str(error)

ray._private.utils.set_sigterm_handler = lambda handler: None  # `when` starts nodes outside the main thread

def when(condition, *actions):
    def wait():
        try:
            while not condition():
                time.sleep(0.05)
            for action in actions:
                action()
            threading.Event().wait()  # a node dies with the thread that started it
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    threading.Thread(target=wait, daemon=True).start()

def made(name):
    return len(list((out / name).glob("part-*")))
"""


def said(script: str, out: Path) -> tuple[dict[str, Any], str]:
    """Run a script after the beginning that all have. Return its answer and what it said to the user."""
    command = [sys.executable, "-c", f"{BEGIN}\n{script}\nprint(json.dumps(said))\nstop_ray()", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


NODES = """
cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
first, second = (cluster.add_node(num_cpus=1, num_gpus=1) for _ in range(2))
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
machine = resolve_machine(clusters.Cluster(address="auto", wait_seconds=4))
ray_map.GROW_SECONDS = 0.5


def change():
    cluster.remove_node(first, allow_graceful=False)
    third = cluster.add_node(num_cpus=1, num_gpus=2)
    (out / "named").write_text(third.node_id)
    (out / "named").rename(out / "node")


def lose():
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)

when(lambda: made("changing") >= 2, change)
said["nodes"] = mapped("changing", machine, worker=workers.Awaiting)
said["joined"] = (out / "node").read_text()
when(lambda: made("gone") >= 2, lose)
(out / "worked").unlink()
(out / "node").unlink()
said["error"] = failure("gone", machine, worker=workers.Awaiting)
said["made"] = made("gone")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_that_die_and_join_during_a_map(tmp_path: Path) -> None:
    """A node dies, another one joins and works: all files are as one process makes them. When all of the nodes with
    GPUs die, the map waits as long as the profile says, and fails. It never goes on with CPUs."""
    answer, messages = said(NODES, tmp_path)
    assert any(answer["joined"][:8] in node for node in answer["nodes"])
    assert len(answer["nodes"]) >= 2
    alone = tmp_path / "alone"
    alone.mkdir()
    machine = resolve_machine(Cluster(mode="inline", device="cpu"))
    shards = row_shards(24, 1, "part-{}", number="changing")
    map_shards(
        workers.Noter, shards, out=alone, machine=machine, pool=machine.cluster.map, unit="x", log=str(alone / "log")
    )
    for shard in shards:
        assert (tmp_path / "changing" / shard.file).read_bytes() == (alone / shard.file).read_bytes()
    assert 2 <= answer["made"] <= 4
    assert "the cluster has lost GPUs that this step needs, and none came back in 4 s" in answer["error"]
    assert "waiting for processors, at most 4 s (wait_seconds in the profile): there are 0 GPUs" in messages


TENANT = """
cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=2, num_gpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
ray_map.IDLE_SECONDS = 2.0
ray_map.START_SECONDS = 8.0
machine = resolve_machine(clusters.Cluster(address="auto", wait_seconds=1))
ray = ray_session(machine.cluster)

class Tenant:
    def ready(self):
        pass

tenants = [ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")(Tenant).remote() for _ in range(2)]
ray.get([tenant.ready.remote() for tenant in tenants])
said["nodes"] = mapped("beside", machine, gpu=False, seconds=0.2)
mapped("warm", machine, gpu=False, seconds=0.2)
said["stayed"] = processes("beside") == processes("warm")
while ray.available_resources().get("CPU", 0) != 3:
    time.sleep(0.1)
mapped("cold", machine, gpu=False, seconds=0.2)
said["new"] = not set(processes("cold")) & set(processes("warm"))
tenants.append(ray.remote(num_gpus=1)(Tenant).remote())
ray.get(tenants[-1].ready.remote())
said["error"] = failure("held", machine, gpu=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_map_beside_another_tenant(tmp_path: Path) -> None:
    """With half a core of each node: the map goes on with the cores that are free. Its processes stay for the next map,
    and leave the cluster when no map comes. With the only GPU: the map says what it waits for, and fails."""
    answer, messages = said(TENANT, tmp_path)
    assert len(answer["nodes"]) == 2
    assert answer["stayed"]
    assert answer["new"]
    assert "waiting for 1 GPU of one node, at most 8 s (wait_seconds in the profile)" in messages
    assert answer["error"].startswith("no process of this step has started on 1 GPU of one node within 8 s")
    assert not list((tmp_path / "held").glob("part-*"))


WARM = """
from sparring.workflows.distributed import ray_train
from sparring.workflows.distributed.worker_group import train_together

ray.init(address="local", num_cpus=8, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray_train.fit = workers.fit_without_gpus
machine = resolve_machine(clusters.Cluster(device="cuda", train={"workers": 2, "threads": 1}))
for name, gpu, worker in (("first", True, workers.Noter), ("java", False, workers.Noter),
                          ("second", True, workers.Counting)):
    mapped(name, machine, gpu=gpu, worker=worker, seconds=0.3)
said["before"] = [processes("first"), processes("second")]
train_together(workers.where, {"out": str(out)}, machine, storage=out)
mapped("third", machine, seconds=0.3)
said["after"] = processes("third")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_on_gpus_stay_until_a_training_needs_the_gpus(tmp_path: Path) -> None:
    answer, _ = said(WARM, tmp_path)
    first, second = answer["before"]
    assert first == second
    assert len(first) == 2
    assert len(answer["after"]) == 2
    assert not set(answer["after"]) & set(first)
