"""Ray is told that a machine has eight GPUs: where it places the workers of every kind of step of cluster/node.yaml."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny import ROOT

PLACEMENT = """
import json, sys
from pathlib import Path
import ray
from sparring.workflows.distributed import cluster as clusters, ray_train, session
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from sparring.workflows.distributed.worker_group import train_together
from tests.support.workers import WhereItRuns, fit_without_gpus, where

ray.init(address="local", num_cpus=40, num_gpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
out = Path(sys.argv[1])
ray_train.fit = fit_without_gpus
profile = clusters.read_cluster(Path("cluster/node.yaml")).model_dump(mode="json")
cluster = clusters.Cluster.model_validate({**profile, **json.loads(sys.argv[2])})
machine = resolve_machine(cluster)
assert machine.cuda
for name, pool, gpu in (("models", cluster.map, True), ("java", cluster.java, False), ("scores", cluster.score, True)):
    (out / name).mkdir()
    map_shards(WhereItRuns, row_shards(24, 1, "{:02d}"), out=out / name, machine=machine, pool=pool, unit="x", gpu=gpu)
print(json.dumps(train_together(where, {"out": str(out)}, machine, storage=out)))
session.stop_ray()
"""


TOGETHER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import ray
from sparring.workflows.distributed import cluster as clusters, ray_train, session
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.worker_group import train_together
from tests.support.workers import fit_without_gpus, where

ray.init(address="local", num_cpus=8, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray_train.fit = fit_without_gpus
cluster = clusters.Cluster(device="cuda", parallel_steps=2, train={"workers": 1, "threads": 1, "gpus": 0.5})
machine = resolve_machine(cluster)
out = Path(sys.argv[1])

def trained(name):
    (out / name).mkdir()
    task = {"out": str(out / name), "meet": str(out / "met"), "of": 2}
    train_together(where, task, machine, storage=out / name)

with ThreadPoolExecutor(2) as pool:
    list(pool.map(trained, ["one", "other"]))
session.stop_ray()
"""


def placed(out: Path, **profile: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PLACEMENT, str(out), json.dumps(profile)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_workers_of_every_step_have_their_gpus(tmp_path: Path) -> None:
    """Workers that encode have a GPU each, those of BM25 none, two that score share one, and each of the eight training
    workers has its own."""
    done = placed(tmp_path, score={"workers": 2, "gpus": 0.5})
    assert done.returncode == 0, done.stderr
    models, java, scores = (
        [json.loads(path.read_text()) for path in (tmp_path / name).glob("[0-9]*")]
        for name in ("models", "java", "scores")
    )
    assert all(len(model["gpus"]) == 1 for model in models)
    assert len({model["process"] for model in models}) == len({model["gpus"][0] for model in models})
    assert {tuple(process["gpus"]) for process in java} == {()}
    assert len({task["process"] for task in scores}) == 2
    assert len({tuple(task["gpus"]) for task in scores}) == 1
    trained = [json.loads(path.read_text()) for path in tmp_path.glob("rank-*")]
    assert sorted(worker["rank"] for worker in trained) == list(range(8))
    assert len({worker["gpus"][0] for worker in trained}) == 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_trainings_at_once_share_a_gpu(tmp_path: Path) -> None:
    """Each waits for the other, so they run at once."""
    command = [sys.executable, "-c", TOGETHER, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / name / "rank-0").read_text()) for name in ("one", "other"))
    assert first["process"] != second["process"]
    assert first["gpus"] == second["gpus"] != []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_gpus_than_there_are_are_refused(tmp_path: Path) -> None:
    done = placed(tmp_path, train={"workers": 9, "threads": 1})
    assert "train.workers: 9 workers with a GPU each are asked for, and there are 8 GPUs" in done.stderr
    assert list(tmp_path.iterdir()) == []
