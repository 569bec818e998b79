"""Cluster profiles: what they accept, how many workers and threads they give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sparring.components.config import UserError
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.cluster import Cluster, Pool, TrainPool
from sparring.workflows.tuning.share import Share
from tests.support.tiny import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_can_be_read(path: Path) -> None:
    text = path.read_text()
    if "kind: Ray" in text or "cluster_name:" in text:  # tests/system/test_cluster_files.py
        pytest.skip("not a profile")
    assert text.startswith("# ")
    clusters.read_cluster(path)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such file"):
        clusters.read_cluster(tmp_path / "nowhere.yaml")


def test_an_experiment_is_no_profile() -> None:
    with pytest.raises(UserError, match=r"configs/demo\.yaml: an experiment; accepted: a cluster profile, such as"):
        clusters.read_cluster(ROOT / "configs/demo.yaml")


def test_a_place_is_no_key_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mode: inline\nstore: s3://bucket/team\n")
    with pytest.raises(UserError, match=r"mine\.yaml: store: no key of a profile; accepted: `--store FOLDER` before"):
        clusters.read_cluster(tmp_path / "mine.yaml")


def test_training_workers_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "cores", lambda: 8)
    assert Cluster(train=TrainPool(workers=2, threads=3)).train_threads() == 3
    assert Cluster(train=TrainPool(workers=2, threads=0)).train_threads() == 4
    assert Cluster(train=TrainPool(workers=None, threads=0)).train_threads() == 8
    assert Cluster(train=TrainPool(workers=16, threads=0)).train_threads() == 1


@pytest.mark.parametrize(("workers", "shards", "expected"), [(4, 9, 4), (4, 2, 2), (4, 0, 1), (1, 9, 1)])
def test_there_are_no_more_workers_than_shards(workers: int, shards: int, expected: int) -> None:
    assert Cluster().workers(Pool(workers=workers), shards) == expected
    assert Cluster().workers(Pool(workers=workers), shards, gpu=True) == expected


def test_null_is_a_worker_for_each_core_or_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 6.0 + Cluster().reserved_cpus(), "GPU": 3.0}

    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    assert Cluster().workers(Pool(), 100) == 6
    assert Cluster().workers(Pool(), 100, gpu=True) == 3
    assert Cluster().workers(Pool(), 2) == 2
    assert Cluster().workers(Pool(gpus=0.5), 100, gpu=True) == 6


@pytest.mark.parametrize(
    ("profile", "gpus", "rows", "workers"),
    [
        ({"train": {"workers": None}}, 8, 64, 8),
        ({"train": {"workers": None}}, 6, 64, 4),
        ({"train": {"workers": None}}, 3, 64, 2),
        ({"train": {"workers": None}}, 16, 8, 8),
        ({"train": {"workers": None}}, 5, 7, 1),
        ({"train": {"workers": None}}, 0, 64, 1),
        ({"train": {"workers": None}, "device": "cpu"}, 8, 64, 1),
        ({"train": {"workers": 3}}, 8, 64, 3),
        ({}, 8, 64, 1),
    ],
)
def test_training_takes_as_many_gpus_as_divide_the_batch(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], gpus: int, rows: int, workers: int
) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 32.0, **({"GPU": float(gpus)} if gpus else {})}

    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    cluster = Cluster.model_validate({"address": "auto", **profile})
    assert cluster.for_batch(rows).train.workers == workers


def test_trials_divide_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 32.0, "GPU": 8.0}

    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    cluster = Cluster(address="auto", train=TrainPool(workers=None))
    assert Share.of(cluster, parts=2, capacity=2).for_batch(64).train.workers == 4
    assert Share.of(cluster, parts=8, capacity=8).for_batch(64).train.workers == 1


@pytest.mark.parametrize("pool", [{"workers": 0}, {"workers": -1}, {"threads": -1}, {"threads": 0}])
def test_no_pool_is_without_workers(pool: dict[str, int]) -> None:
    for name in ("train", "map", "score", "java"):
        if (name, pool) == ("train", {"threads": 0}):  # as many as there are cores for
            continue
        with pytest.raises(ValidationError, match=r"greater than or equal to"):
            Cluster(**{name: pool})


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({"java": {"gpus": 0.5}}, "java: gpus: got 0.5; its workers use no GPU; accepted: 1"),
        (
            {"train": {"workers": 2, "gpus": 0.5}},
            "train: gpus: got 0.5 with workers: 2; the workers of one training "
            "cannot share a GPU; accepted: 1, or a part with workers: 1",
        ),
        ({"train": {"workers": None, "gpus": 0.5}}, "train: gpus: got 0.5 with workers: null"),
    ],
)
def test_only_what_can_share_a_gpu_has_a_part_of_one(profile: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        Cluster(**profile)
    assert Cluster(train={"workers": 1, "gpus": 0.5}, map={"gpus": 0.5}).train.gpus == 0.5


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({"train": {"workers": 2}}, "train.workers: got 2; accepted with mode: inline: 1, or null"),
        ({"train": {"shard": True}}, "train.shard: got true; accepted with mode: inline: false"),
        ({"address": "auto"}, "address: got 'auto'; accepted with mode: inline: null"),
        ({"parallel_steps": 2}, "parallel_steps: got 2; accepted with mode: inline: 1"),
    ],
)
def test_one_process_refuses_what_it_would_ignore(profile: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        Cluster(mode="inline", **profile)


def test_one_process_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert Cluster(mode="inline", train=TrainPool(workers=None)).for_batch(64).train.workers == 1


def test_the_largest_living_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that needs more cores than any machine has would wait for ever."""

    class Ray:
        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            sizes = [(0.0, True), (8.0, True), (2.0, True), (64.0, False)]
            return [{"Alive": alive, "Resources": {"CPU": size}} for size, alive in sizes]

    monkeypatch.setattr(clusters, "cores", lambda: 96)
    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    assert Cluster().machine_cores() == 96
    assert Cluster(mode="inline").machine_cores() == 96
    assert Cluster(address="auto").machine_cores() == 8


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({}, None),
        ({"train": {"workers": 8}, "map": {"workers": 8}}, None),
        (
            {"train": {"workers": 9}},
            "train.workers: 9 workers with a GPU each are asked for, and there are 8 GPUs; accepted: 1 to 8",
        ),
        ({"map": {"workers": 16}}, "map.workers: 16 workers with a GPU each"),
        ({"score": {"workers": 16, "gpus": 0.5}}, None),
        (
            {"score": {"workers": 17, "gpus": 0.5}},
            "score.workers: 17 workers with 0.5 of a GPU each are asked for, and there are 8 GPUs; accepted: 1 to 16",
        ),
        ({"score": {"threads": 33}}, "score.threads: 33 for each worker"),
        ({"device": "cpu", "map": {"workers": 16}}, None),
        ({"device": "cpu", "address": "auto", "train": {"workers": 40}}, "train.workers: 40 workers with a CPU each"),
        ({"device": "cpu", "train": {"workers": 40}}, None),
        ({"java": {"threads": 33}}, "java.threads: 33 for each worker are asked for, and no machine has more than 32"),
        ({"map": {"threads": 33}}, "map.threads: 33 for each worker"),
        ({"mode": "inline", "map": {"threads": 99}}, None),
    ],
)
def test_requests_that_would_wait_for_ever_are_refused(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], says: str | None
) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 32.0, "GPU": 8.0}

        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            return [{"Alive": True, "Resources": {"CPU": 32.0}}]

    monkeypatch.setattr(clusters, "cores", lambda: 32)
    monkeypatch.setattr(clusters, "ray_session", lambda cluster: Ray)
    cluster = Cluster.model_validate(profile)
    if says is None:
        cluster.check()
    else:
        with pytest.raises(UserError, match=f"^cluster: {re.escape(says)}"):
            cluster.check()


def test_the_device_depends_on_the_profile_and_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not Cluster(mode="inline", device="auto").cuda()
    assert not Cluster(mode="inline", device="cpu").cuda()
    with pytest.raises(UserError, match=r"device: cuda is asked for.*accepted: auto, cpu"):
        Cluster(mode="inline", device="cuda").cuda()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert Cluster(mode="inline", device="auto").cuda()
    assert Cluster(mode="inline", device="cuda").cuda()
    assert not Cluster(mode="inline", device="cpu").cuda()


def test_an_address_with_a_password_is_refused(tmp_path: Path) -> None:
    """It would be in every record."""
    (tmp_path / "x.yaml").write_text("address: ray://me:swordfish@head:10001\n")
    with pytest.raises(UserError, match=r"x\.yaml: address: has more than a host and a port in it") as refused:
        clusters.read_cluster(tmp_path / "x.yaml")
    assert "swordfish" not in str(refused.value)
