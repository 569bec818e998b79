"""Eight GPUs pretended on a machine without one: every step of cluster/node.yaml is placed as it is meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import ROOT

PRETENDED = """
import json, sys
from pathlib import Path
import ray
from workflows import cluster as clusters, worker_group
from workflows.shards import map_shards, runs
from workflows.worker_group import train_together
from tests.workers import WhereItRuns, fit_without_gpus, where

ray.init(address="local", num_cpus=40, num_gpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
out = Path(sys.argv[1])
worker_group._fit = fit_without_gpus
profile = clusters.read(Path("cluster/node.yaml")).model_dump(mode="json")
cluster = clusters.Cluster.model_validate({**profile, **json.loads(sys.argv[2])})
cluster.check()
assert cluster.cuda()
for name, pool, gpu in (("models", cluster.map, True), ("java", cluster.java, False), ("scores", cluster.score, True)):
    (out / name).mkdir()
    map_shards(WhereItRuns, runs(24, 1, "{:02d}"), out=out / name, cluster=cluster, pool=pool, unit="x", gpu=gpu)
print(json.dumps(train_together(where, {"out": str(out)}, cluster, gpu=True, storage=out)))
clusters.stop_ray()
"""


def placed(out: Path, **profile: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRETENDED, str(out), json.dumps(profile)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.slow
def test_every_step_of_the_profile_has_its_gpus(tmp_path: Path) -> None:
    """A GPU for each of eight that encode, none for BM25, one for two that score, if it says so, and for training one
    each, all in one group."""
    done = placed(tmp_path, score={"workers": 2, "gpus": 0.5})
    assert done.returncode == 0, done.stderr
    models, java, scores = ([json.loads(path.read_text()) for path in (tmp_path / name).glob("[0-9]*")]
                            for name in ("models", "java", "scores"))  # fmt: skip
    assert all(len(one["gpus"]) == 1 for one in models)
    assert len({one["process"] for one in models}) == len({one["gpus"][0] for one in models})
    assert {tuple(one["gpus"]) for one in java} == {()}
    assert len({one["process"] for one in scores}) == 2
    assert len({tuple(one["gpus"]) for one in scores}) == 1
    trained = [json.loads(path.read_text()) for path in tmp_path.glob("rank-*")]
    assert sorted(one["rank"] for one in trained) == list(range(8))
    assert len({one["gpus"][0] for one in trained}) == 8


@pytest.mark.slow
def test_more_gpus_than_there_are_are_refused(tmp_path: Path) -> None:
    done = placed(tmp_path, train={"workers": 9, "threads": 1})
    assert "train.workers: 9 workers with a GPU each are asked for, and there are 8 GPUs" in done.stderr
    assert list(tmp_path.iterdir()) == []
