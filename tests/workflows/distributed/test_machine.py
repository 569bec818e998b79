"""The machine: what a run finds for its profile, and what follows from it for steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.workflows.distributed import limits, machine, nodes, ray_map, worker_group
from sparring.workflows.distributed.cluster import Cluster, Pool, TrainPool
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from sparring.workflows.distributed.worker_group import train_together
from tests.support import workers
from tests.support.machines import changed

GB = 2.0**30
CPUS = Machine(Cluster(), nodes=1, cores=8, cpus=8, gpus=0.0, memory=GB)
GPUS = Machine(Cluster(address="auto"), nodes=2, cores=16, cpus=32, gpus=8.0, memory=GB)


class Ray:
    """A Ray cluster of so many nodes, of which the test can take the GPUs away."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.living = list(nodes)

    def cluster_resources(self) -> dict[str, float]:
        return {name: sum(node.get(name, 0) for node in self.living) for node in self.living for name in node}

    def nodes(self) -> list[dict[str, Any]]:
        living = [{"Alive": True, "Resources": node, "Labels": {}} for node in self.living]
        return [*living, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}, "Labels": {}}]


Session = Callable[..., Ray]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Put a cluster of the given nodes in Ray's place."""

    def begin(*nodes: dict[str, float]) -> Ray:
        ray = Ray(*nodes)
        for module in (machine, ray_map, worker_group):
            monkeypatch.setattr(module, "ray_session", lambda cluster, **_: ray)
        return ray

    return begin


# What is found


def test_one_machine_with_cpus_needs_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ray_session", None)
    monkeypatch.setattr(limits, "cores", lambda: 6)
    monkeypatch.setattr(limits, "available_memory", lambda: 3 * GB)
    for mode in ("ray", "inline"):
        profile = Cluster(mode=mode, device="cpu")
        assert resolve_machine(profile) == Machine(profile, nodes=1, cores=6, cpus=6, gpus=0, memory=3 * GB)


def test_the_living_nodes_of_a_joined_cluster_count(session: Session) -> None:
    """A task that needs more cores than any node has would wait for ever."""
    sizes = {"memory": 2 * GB, "object_store_memory": GB}
    session(
        {"CPU": 0.0}, {"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0, **sizes}, {"CPU": 2.0, "memory": 4 * GB}
    )
    machine = resolve_machine(Cluster(address="auto"))
    assert (machine.nodes, machine.cores, machine.cpus, machine.gpus) == (2, 8, 10, 4)
    assert (machine.memory, machine.devices) == (3 * GB, ("H100",))
    assert machine.cuda
    machine = resolve_machine(Cluster(address="auto", device="cpu"))
    assert (machine.cpus, machine.gpus, machine.devices, machine.cuda) == (10, 0, (), False)


@pytest.mark.parametrize("present", [False, True])
def test_the_device_depends_on_the_profile_and_on_the_gpus(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: present)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H100")
    assert resolve_machine(Cluster(mode="inline", device="auto")).cuda == present
    assert not resolve_machine(Cluster(mode="inline", device="cpu")).cuda
    if present:
        assert resolve_machine(Cluster(mode="inline", device="cuda")).devices == ("H100",)
    else:
        with pytest.raises(UserError, match=r"device: cuda is asked for.*accepted: auto, cpu"):
            resolve_machine(Cluster(mode="inline", device="cuda"))


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
        ({"mode": "inline", "device": "cpu", "map": {"threads": 99}}, None),
    ],
)
def test_requests_that_would_wait_for_ever_are_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], says: str | None
) -> None:
    session({"CPU": 32.0, "GPU": 8.0})
    monkeypatch.setattr(limits, "cores", lambda: 32)
    if says is None:
        resolve_machine(Cluster.model_validate(profile))
    else:
        with pytest.raises(UserError, match=f"^cluster: {re.escape(says)}"):
            resolve_machine(Cluster.model_validate(profile))


# What follows for steps


def test_training_workers_divide_the_cores() -> None:
    for workers_, threads, expected in ((2, 3, 3), (2, 0, 4), (None, 0, 8), (16, 0, 1)):
        assert changed(CPUS, {"train": TrainPool(workers=workers_, threads=threads)}).train_threads == expected
    assert replace(CPUS, cluster=Cluster(train=TrainPool(workers=2, threads=0)), parts=2).train_threads == 2


@pytest.mark.parametrize(("count", "pieces", "expected"), [(4, 9, 4), (4, 2, 2), (4, 0, 1), (1, 9, 1)])
def test_there_are_no_more_workers_than_shards(count: int, pieces: int, expected: int) -> None:
    assert CPUS.workers(Pool(workers=count), pieces) == expected
    assert GPUS.workers(Pool(workers=count), pieces, gpu=True) == expected


def test_null_is_a_worker_for_each_core_or_gpu() -> None:
    assert CPUS.workers(Pool(), 100) == 8
    assert CPUS.workers(Pool(), 2) == 2
    assert GPUS.workers(Pool(), 100) == 32
    assert GPUS.workers(Pool(), 100, gpu=True) == 8
    assert GPUS.workers(Pool(gpus=0.5), 100, gpu=True) == 16


@pytest.mark.parametrize(
    ("profile", "gpus", "rows", "expected"),
    [
        ({"train": {"workers": None}}, 8, 64, 8),
        ({"train": {"workers": None}}, 6, 64, 6),
        ({"train": {"workers": None}}, 16, 8, 8),
        ({"train": {"workers": None}}, 0, 64, 1),
        ({"train": {"workers": 3}}, 8, 64, 3),
        ({"train": {"workers": None}, "mode": "inline"}, 1, 64, 1),
        ({}, 8, 64, 1),
    ],
)
def test_training_takes_as_many_gpus_as_there_are_rows(
    profile: dict[str, Any], gpus: int, rows: int, expected: int
) -> None:
    machine = replace(GPUS, cluster=Cluster.model_validate(profile), gpus=float(gpus))
    assert machine.for_batch(rows).cluster.train.workers == expected


def test_trials_divide_workers_and_gpus() -> None:
    free = changed(GPUS, {"train": TrainPool(workers=None)})
    assert replace(free, parts=2).for_batch(64).cluster.train.workers == 4
    assert replace(free, parts=8).for_batch(64).cluster.train.workers == 1
    assert replace(CPUS, parts=4).workers(Pool(workers=8), 100) == 2
    assert replace(CPUS, parts=4).workers(Pool(), 100) == 2
    assert replace(CPUS, parts=4).workers(Pool(workers=8), 1) == 1


# A node with GPUs dies during a run


@pytest.fixture
def lost(session: Session) -> Machine:
    """The machine of a run whose only node with GPUs has died since it began."""
    ray = session({"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0})
    machine = resolve_machine(Cluster(address="auto", device="auto", wait_seconds=0))
    ray.living.pop()
    return machine


def test_a_machine_stays_as_it_was_found(lost: Machine) -> None:
    assert (lost.cuda, lost.gpus, lost.cpus, lost.batch_tokens) == (True, 2, 12, 65_536)
    assert lost.workers(Pool(), 100, gpu=True) == 2
    with pytest.raises(FrozenInstanceError):
        lost.gpus = 0.0  # type: ignore[misc]


def test_a_step_whose_gpus_are_gone_fails_instead_of_using_cpus(lost: Machine, tmp_path: Path) -> None:
    says = r"the cluster has lost GPUs that this step needs, and none came back in 0 s \(wait_seconds in the profile\)"
    pool, work = lost.cluster.map, row_shards(4, 1, "{}.npy")
    with pytest.raises(RuntimeError, match=says):
        map_shards(workers.Noter, work, out=tmp_path, machine=lost, pool=pool, unit="x", gpu=lost.cuda)
    with pytest.raises(RuntimeError, match=says):
        train_together(np.sum, {}, lost, storage=tmp_path)
    assert not list(tmp_path.glob("*.npy"))


def test_a_step_waits_for_gpus_that_come_back(
    lost: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The autoscaler is asked for them, and the user reads what the run waits for."""
    ray = Ray({"CPU": 8.0})
    requests: list[Any] = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: requests.append(bundles))
    start = SimpleNamespace(sleep=lambda _: ray.living.append({"GPU": 1.0}), monotonic=lambda: 0.0)
    monkeypatch.setattr(nodes, "time", start)
    nodes.wait_for_processors(ray, changed(lost, {"wait_seconds": 60}).cluster, "GPU", 2, 0.5)
    assert requests == [[{"GPU": 0.5}] * 2, []]
    assert capsys.readouterr().err == (
        "waiting for processors, at most 60 s (wait_seconds in the profile): there are 0 GPUs, and this step needs 1 "
        "(a node was lost)\n"
    )
