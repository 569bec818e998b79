"""How trials divide a cluster among them."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.tuning import share
from sparring.workflows.tuning.share import Share, concurrent_trials, machine_capacity


def test_a_share_has_its_part_of_the_workers_and_threads() -> None:
    cluster = Cluster(train={"workers": 2, "threads": 0}, map={"workers": 8, "threads": 1})
    part = Share.of(cluster, parts=4, capacity=4)
    assert part.workers(part.map, 100) == 2
    assert part.workers(part.map, 1) == 1
    assert part.train.threads >= 1
    assert part.reserved_cpus() == 2 + 2 * 4
    assert Share.of(cluster, parts=1, capacity=4).workers(cluster.map, 100) == 8
    assert Cluster.model_validate(part.model_dump(mode="json")).train_threads() == part.train_threads()


@pytest.mark.parametrize(
    ("profile", "there", "most"),
    [
        ({"train": {"workers": 2}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 4),
        ({"train": {"workers": 8}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 1),
        ({"train": {"workers": 16}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 1),
        ({"train": {"workers": 1, "gpus": 0.25}, "device": "cuda"}, {"GPU": 2.0, "CPU": 99.0}, 8),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 3}, {"GPU": 8.0, "CPU": 99.0}, 3),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 30}, {"GPU": 8.0, "CPU": 99.0}, 8),
        ({"train": {"workers": 1}, "device": "cpu", "address": "auto"}, {"CPU": 9.0}, 4),
        ({"train": {"workers": 4}, "device": "cpu", "address": "auto"}, {"CPU": 4.0}, 1),
    ],
)
def test_as_many_trials_run_at_once_as_the_cluster_has_processors_for(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], there: dict[str, float], most: int
) -> None:
    class Session:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return there

    monkeypatch.setattr(share, "ray_session", lambda _: Session)
    monkeypatch.setattr("sparring.workflows.distributed.cluster.ray_session", lambda _: Session)
    assert concurrent_trials(Cluster(**profile), 20, 20) == most


def test_one_machine_runs_as_many_trials_as_its_memory_and_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "cores", lambda: 16)
    monkeypatch.setattr(share, "available_memory", lambda: 20.0 * 2**30)
    assert machine_capacity(1) == 5
    assert machine_capacity(8) == 2
    assert machine_capacity(99) == 1
