"""How trials divide a cluster among them."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.workflows.distributed import nodes
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.tuning import capacity
from sparring.workflows.tuning.capacity import (
    DRIVER_MEMORY,
    TRIAL_MEMORY,
    concurrent_trials,
    driver_memory,
    machine_capacity,
)


@pytest.mark.parametrize(
    ("profile", "free", "most"),
    [
        ({"train": {"workers": 2}, "device": "cuda"}, [{"GPU": 8.0, "CPU": 99.0}], 4),
        ({"train": {"workers": 8}, "device": "cuda"}, [{"GPU": 8.0, "CPU": 99.0}], 1),
        ({"train": {"workers": 16}, "device": "cuda"}, [{"GPU": 8.0, "CPU": 99.0}], 1),
        ({"train": {"workers": 1, "gpus": 0.25}, "device": "cuda"}, [{"GPU": 2.0, "CPU": 99.0}], 8),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 3}, [{"GPU": 8.0, "CPU": 99.0}], 3),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 30}, [{"GPU": 8.0, "CPU": 99.0}], 8),
        ({"train": {"workers": 1}, "device": "cuda"}, [{"GPU": 8.0, "CPU": 3.0}], 3),
        ({"train": {"workers": 1}, "device": "cpu", "address": "auto"}, [{"CPU": 9.0}], 9),
        ({"train": {"workers": 1}, "device": "cpu", "address": "auto"}, [{"CPU": 1.5}, {"CPU": 1.5}], 2),
        ({"train": {"workers": 4}, "device": "cpu", "address": "auto"}, [{"CPU": 4.0}], 1),
        ({"train": {"workers": 1}, "device": "cpu", "address": "auto"}, [{}], 1),
    ],
)
def test_as_many_trials_run_at_once_as_the_cluster_has_free_processors_for(
    profile: dict[str, Any], free: list[dict[str, float]], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other programs hold, and parts of a CPU that no worker can use, count for nothing."""
    monkeypatch.setattr(nodes, "free_nodes", lambda: [{"memory": 99.0 * TRIAL_MEMORY, **node} for node in free])
    monkeypatch.setattr(capacity, "ray_session", lambda cluster: None)
    monkeypatch.setattr(nodes, "may_grow", lambda ray: False)
    gpus = 8.0 if profile["device"] == "cuda" else 0.0
    machine = Machine(Cluster(**profile), nodes=1, cores=99, cpus=99, gpus=gpus, memory=1e9)
    assert concurrent_trials(machine, 20, 20) == most


def test_free_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = Machine(Cluster(device="cpu", address="auto"), nodes=1, cores=99, cpus=99, gpus=0.0, memory=1e9)
    gpus = Machine(Cluster(device="cuda", address="auto"), nodes=1, cores=99, cpus=99, gpus=2.0, memory=1e9)
    monkeypatch.setattr(nodes, "free_nodes", lambda: [{"CPU": 64.0, "GPU": 20.0, "memory": 3.5 * TRIAL_MEMORY}])
    assert concurrent_trials(cpus, 20, 20) == 3
    assert concurrent_trials(gpus, 20, 20) == 14


def test_a_cluster_that_grows_runs_as_many_trials_as_the_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free at the start says nothing of the nodes that will come."""
    monkeypatch.setattr(capacity, "ray_session", lambda cluster: None)
    monkeypatch.setattr(nodes, "may_grow", lambda ray: True)
    monkeypatch.setattr(nodes, "free_nodes", lambda: [{"CPU": 64.0, "GPU": 1.0, "memory": 99.0 * TRIAL_MEMORY}])
    profile = Cluster(device="cuda", address="auto", trials=8)
    machine = Machine(profile, nodes=1, cores=64, cpus=64, gpus=1.0, memory=1e9)
    assert concurrent_trials(machine, 20, 20) == 8
    assert concurrent_trials(machine, 20, 5) == 5
    open_ended = Machine(Cluster(device="cuda", address="auto"), nodes=1, cores=64, cpus=64, gpus=1.0, memory=1e9)
    assert concurrent_trials(open_ended, 20, 20) == 1


def test_a_trial_asks_for_no_more_memory_than_a_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "node_memory", lambda: [0.0, 0.5 * DRIVER_MEMORY])
    assert driver_memory() == 0.5 * DRIVER_MEMORY
    monkeypatch.setattr(nodes, "node_memory", lambda: [9.0 * DRIVER_MEMORY])
    assert driver_memory() == DRIVER_MEMORY


def test_one_machine_runs_as_many_trials_as_its_memory_and_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "cores", lambda: 16)
    monkeypatch.setattr(capacity, "available_memory", lambda: 20.0 * 2**30)
    assert machine_capacity(1) == 5
    assert machine_capacity(8) == 2
    assert machine_capacity(99) == 1
