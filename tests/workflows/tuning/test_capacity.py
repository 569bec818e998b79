"""How trials divide a cluster among them."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.tuning import capacity
from sparring.workflows.tuning.capacity import concurrent_trials, machine_capacity


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
    profile: dict[str, Any], there: dict[str, float], most: int
) -> None:
    cpus, gpus = int(there["CPU"]), there.get("GPU", 0.0)
    machine = Machine(Cluster(**profile), nodes=1, cores=cpus, cpus=cpus, gpus=gpus, memory=1e9)
    assert concurrent_trials(machine, 20, 20) == most


def test_one_machine_runs_as_many_trials_as_its_memory_and_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "cores", lambda: 16)
    monkeypatch.setattr(capacity, "available_memory", lambda: 20.0 * 2**30)
    assert machine_capacity(1) == 5
    assert machine_capacity(8) == 2
    assert machine_capacity(99) == 1
