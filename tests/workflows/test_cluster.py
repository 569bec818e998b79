"""Profiles: what they may say, and how many workers and threads they come to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.config import UserError
from tests.tiny import ROOT
from workflows import cluster as clusters
from workflows.cluster import Cluster, Pool


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_is_one(path: Path) -> None:
    text = path.read_text()
    if "kind: Ray" in text or "cluster_name:" in text:
        pytest.skip("for another launcher")
    assert text.startswith("# ")
    clusters.read(path)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such file"):
        clusters.read(tmp_path / "nowhere.yaml")


def test_threads_of_a_training_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "cores", lambda: 8)
    assert Cluster(train=Pool(workers=2, threads=3)).train_threads() == 3
    assert Cluster(train=Pool(workers=2, threads=0)).train_threads() == 4
    assert Cluster(train=Pool(workers=None, threads=0)).train_threads() == 8
    assert Cluster(train=Pool(workers=16, threads=0)).train_threads() == 1


@pytest.mark.parametrize(("workers", "shards", "expected"), [(4, 9, 4), (4, 2, 2), (4, 0, 1), (1, 9, 1)])
def test_no_more_workers_than_shards(workers: int, shards: int, expected: int) -> None:
    assert Cluster().workers(Pool(workers=workers), shards) == expected
    assert Cluster().workers(Pool(workers=workers), shards, gpu=True) == expected


def test_as_many_workers_as_the_cluster_has_cores_or_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 6.0 + Cluster().reserved(), "GPU": 3.0}

    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    assert Cluster().workers(Pool(), 100) == 6
    assert Cluster().workers(Pool(), 100, gpu=True) == 3
    assert Cluster().workers(Pool(), 2) == 2


def test_cores_are_those_this_process_may_use() -> None:
    assert clusters.cores() == len(os.sched_getaffinity(0))


def test_a_gpu_is_asked_for_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not Cluster(mode="inline", device="auto").cuda()
    assert not Cluster(mode="inline", device="cpu").cuda()
    with pytest.raises(UserError, match=r"device: cuda is asked for.*accepted: auto, cpu"):
        Cluster(mode="inline", device="cuda").cuda()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert Cluster(mode="inline", device="auto").cuda()
    assert Cluster(mode="inline", device="cuda").cuda()
    assert not Cluster(mode="inline", device="cpu").cuda()


def test_leaving_ray_where_it_was_never_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    clusters.stop_ray()
    assert "ray" not in sys.modules
