"""Three nodes of Ray on one machine give what one process gives, each does its part, and one may be lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support import killing, tiny
from tests.support.tiny import ROOT, Place

NODES = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
for _ in range(2):
    cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
from tests.support import workers
from sparring.workflows.command_line import main
from sparring.workflows.steps import lucene, search
lucene.QUERIES_A_SHARD, search.ON_CPU = 2, search.ON_CPU._replace(queries=2)  # something for each node
lucene._Retrieval, search._Searching = workers.UnhurriedRetrieval, workers.UnhurriedSearch
sys.exit(main(sys.argv[1:]))
"""
PROFILE: dict[str, Any] = {
    "mode": "ray",
    "address": "auto",
    "device": "cpu",
    "retries": 0,
    "max_tokens_per_pass": 256,
    "map": {"workers": 3, "threads": 1},
    "java": {"workers": 2, "threads": 1},
    "train": {"workers": 2, "threads": 1},
}


def on_nodes(script: str, place: Place) -> str:
    """Run there; what was said."""
    command = [sys.executable, "-c", script, *place.words("run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def nodes(place: Place) -> dict[str, int]:
    """How many nodes computed in each step, by its label."""
    return {record["label"]: sum("(" in name for name in record["nodes"]) for record in tiny.records(place.store)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_nodes_give_the_same(played: Place, tmp_path: Path) -> None:
    """Each step spans nodes. Two training workers sum a gradient in another order than one: vectors may be 1e-4 apart
    after it, and a measure .05, a rank more or less of a query or two. BM25 is the same to the bit."""
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()), **PROFILE)
    on_nodes(NODES, place)
    spanned = nodes(place)
    assert spanned["warm retriever vectors"] == 3
    assert spanned["warm retriever"] == spanned["ranker 1"] == 2
    for label in ("bm25 ranking (test)", "judged 1", "warm retriever ranking (train)"):
        assert spanned[label] >= 2, label
    values = {(row["system"], row["measure"]): row["value"] for row in played.metrics()["rows"]}
    for row in place.metrics()["rows"]:
        assert row["value"] == pytest.approx(values[row["system"], row["measure"]], abs=0.05)
    ranking, wanted = (
        pq.read_table(run.artifact("bm25 ranking (test)") / "ranking.parquet") for run in (place, played)
    )
    assert ranking.equals(wanted)
    for shard, expected in zip(*(vectors(p, "warm retriever vectors") for p in (place, played)), strict=True):
        np.testing.assert_allclose(shard, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_nodes_give_exactly_the_same_with_the_same_models(played: Place, tmp_path: Path) -> None:
    """Where one process trained: vectors, BM25, what rankers say, measures and the order of what is found, to the bit.

    Scores of a search may differ in the last digit: here it multiplies blocks of two queries.
    """
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()), **PROFILE)
    for trained in played.store.glob("train-*"):
        shutil.copytree(trained, place.store / trained.name)
    on_nodes(NODES, place)
    for part in ("rows", "comparisons"):
        assert place.metrics()[part] == played.metrics()[part]
    rankings = {path.parent.name for path in place.store.glob("*/ranking.parquet")}
    for_trainings = {played.artifact("warm retriever ranking (train)").name}
    assert rankings == {path.parent.name for path in played.store.glob("*/ranking.parquet")} - for_trainings
    for path in (Path(name) / "ranking.parquet" for name in rankings):
        table, wanted = (pq.read_table(store / path) for store in (place.store, played.store))
        if path.parent.name.startswith("search-"):
            np.testing.assert_allclose(table["score"], wanted["score"], rtol=1e-6)
            table, wanted = table.drop(["score"]), wanted.drop(["score"])
        assert table.equals(wanted)
    for shard, expected in zip(*(vectors(p, "retriever 1 vectors") for p in (place, played)), strict=True):
        np.testing.assert_array_equal(shard, expected)
    assert min(nodes(place)[label] for label in ("bm25 ranking (test)", "warm retriever ranking (test)")) >= 2


LOSING = """
import os, subprocess, sys, time
from pathlib import Path
import psutil
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
for _ in range(2):
    cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
from tests.support import killing
run = subprocess.Popen([sys.executable, "-c", killing.ARMED, "slowly", "0", *sys.argv[1:]])

def at_it(node, name):
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return any(name in command(process) for process in raylet.children())

def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return ""

def there(sign, name):
    return [node for node in cluster.worker_nodes if at_it(node, name)] if list(store.glob(sign)) else []

store = Path(sys.argv[sys.argv.index("--store") + 1])
signs = {
    "encode_documents-*/documents-*.npy": "MapProcess",
    "train-*/checkpoints/update-000002": "RayTrainWorker",
}
for sign, name in signs.items():
    while run.poll() is None and not there(sign, name):
        time.sleep(0.02)
    if run.poll() is None:
        cluster.remove_node(there(sign, name)[0], allow_graceful=False)
        print("lost a node:", name, file=sys.stderr, flush=True)
        cluster.add_node(num_cpus=1)
sys.exit(run.wait())
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_survives_the_loss_of_nodes(
    beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while it encodes and one while it trains; others come for them, and the same run ends as one undisturbed."""
    monkeypatch.setenv(killing.LOG, str(tmp_path / "log"))
    tree = tiny.dpr(beir, encoder)
    tree["train"] |= {"updates": 8, "losses": [{"function": "tests.support.killing.slow", "over": "batch"}]}
    tree["encode"]["shard"] = 4
    profile = {**PROFILE, "retries": 2, "map": {"workers": 2, "threads": 1}, "java": {"workers": 1, "threads": 1}}
    place = tiny.place(tmp_path / "lost", tree, **profile)
    output = on_nodes(LOSING, place)
    assert [line for line in output.splitlines() if line.startswith("lost")] == [
        "lost a node: MapProcess",
        "lost a node: RayTrainWorker",
    ]
    reference = tiny.place(tmp_path / "undisturbed", tree, **{**profile, "address": None, "object_store_mb": 100})
    assert killing.run(reference, "slowly") == 0
    assert tiny.results(place.store) == tiny.results(reference.store)
    assert place.metrics()["rows"] == reference.metrics()["rows"]


GONE = """
import os, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
node = cluster.add_node(num_cpus=1, num_gpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
import ray
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import stop_ray
from sparring.workflows.distributed.shards import map_shards, row_shards
from tests.support.workers import WhereItRuns

machine = resolve_machine(clusters.Cluster(address="auto", wait_seconds=3))
cluster.remove_node(node, allow_graceful=False)
while ray.cluster_resources().get("GPU"):
    time.sleep(0.1)
pool, out = machine.cluster.map, Path(sys.argv[1])
try:
    map_shards(WhereItRuns, row_shards(4, 1, "{}"), out=out, machine=machine, pool=pool, unit="x", gpu=machine.cuda)
except RuntimeError as error:
    print(error, file=sys.stderr)
stop_ray()
"""


@pytest.mark.slow
def test_a_step_whose_gpus_are_gone_waits_and_fails(tmp_path: Path) -> None:
    """It never computes on the CPUs that are still there."""
    done = subprocess.run(
        [sys.executable, "-c", GONE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "GPU" in line]
    assert lines == [
        "waiting for processors, at most 3 s (wait_seconds in the profile): there are 0 GPUs, and this step needs 1 (a "
        "node was lost)",
        "the cluster has lost GPUs that this step needs, and none came back in 3 s (wait_seconds in the profile). "
        "Repeat the command when they are there.",
    ]
    assert [path.name for path in tmp_path.iterdir()] in ([], ["progress.json"])


def vectors(place: Place, label: str) -> list[np.ndarray]:
    """Of an encoding, file by file."""
    return [np.load(path) for path in sorted(place.artifact(label).glob("*.npy"))]
