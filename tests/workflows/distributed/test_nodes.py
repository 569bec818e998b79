"""A cluster that was joined: its nodes are waited for and checked."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.workflows.distributed import nodes
from sparring.workflows.distributed.cluster import Cluster, TrainPool
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.store.dag import StepFailed


@pytest.fixture
def joined(ray: Machine) -> Cluster:
    """The profile of a run that joins the session of the tests."""
    ray_session(ray.cluster)  # a command that another test ran in this process has left the session
    return ray.cluster.model_copy(update={"address": "auto"})


def test_a_good_cluster_passes_and_nothing_is_left_in_its_store(joined: Cluster, tmp_path: Path) -> None:
    resolve_machine(joined, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_the_device_that_auto_chooses_is_printed(
    joined: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the user sees when GPU nodes are still starting and would not be used."""
    resolve_machine(joined.model_copy(update={"device": "auto"}), tmp_path / "store")
    assert capsys.readouterr().err == "device: auto: no GPU was found, so models run on CPUs\n"
    resolve_machine(joined, tmp_path / "store")
    assert capsys.readouterr().err == ""


def test_a_store_in_a_missing_directory_is_refused(joined: Cluster, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"--store {tmp_path}/a/b: there is no {tmp_path}/a on the cluster; accepted: "
    ):
        resolve_machine(joined, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_see_the_store_is_refused(tmp_path: Path) -> None:
    problem = nodes._node_problem(str(tmp_path / "probe"), {})
    assert problem == f"does not see {tmp_path}; the store must be on a filesystem that all nodes share"


def test_a_node_with_other_packages_is_refused(
    joined: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {**nodes.installed_versions(), "ray": "1.0", "no-such-package": "2.0"}
    monkeypatch.setattr(nodes, "installed_versions", lambda: versions)
    with pytest.raises(UserError) as caught:
        resolve_machine(joined, tmp_path / "store")
    assert re.fullmatch(
        r"the cluster's node [\d.]+: its packages are not those of this machine: "
        r"ray 2\.60\.0 \(here: 1\.0\), no-such-package missing \(here: 2\.0\)\. Set up both from one checkout .*",
        str(caught.value),
    )
    assert list((tmp_path / "store").iterdir()) == []


def test_only_three_of_many_other_packages_are_named(tmp_path: Path) -> None:
    (tmp_path / "probe").touch()
    problem = nodes._node_problem(str(tmp_path / "probe"), {f"no-such-package-{i}": "1" for i in range(5)})
    assert problem.startswith("its packages are not those of this machine: no-such-package-0 missing (here: 1)")
    assert "no-such-package-2 missing (here: 1) and 2 more. " in problem


def test_faiss_gpu_may_replace_faiss_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe").touch()
    monkeypatch.setattr(nodes, "_installed_version", {"faiss-gpu": "1.0"}.get)
    assert nodes._node_problem(str(tmp_path / "probe"), {"faiss-cpu": "1.0"}) == ""


def test_a_node_with_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "probe").touch()
    problem = nodes._node_problem(str(tmp_path / "probe"), {"python": "3.10.1"})
    assert problem.startswith(
        f"its packages are not those of this machine: python {platform.python_version()} (here: 3.10.1)"
    )


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (
            "cpu",
            r"train\.workers: 999 workers with a CPU each are asked for, and there are \d+ CPUs; accepted: 1 to \d+",
        ),
        ("cuda", "device: cuda is asked for, and there is no GPU"),
    ],
)
def test_a_cluster_that_stays_too_small_is_refused(joined: Cluster, tmp_path: Path, device: str, says: str) -> None:
    changes = {"device": device, "train": TrainPool(workers=999), "wait_seconds": 0}
    with pytest.raises(UserError, match=says):
        resolve_machine(joined.model_copy(update=changes), tmp_path / "store")


class Growing:
    """A Ray cluster whose GPUs become more from one look to the next, up to a last number."""

    def __init__(self, *sizes: float, labels: dict[str, str]) -> None:
        self.sizes, self.labels, self.size = iter(sizes), labels, 0.0

    def cluster_resources(self) -> dict[str, float]:
        self.size = next(self.sizes, self.size)
        return {"GPU": self.size}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Labels": {"ray.io/node-id": "ab", **self.labels}}]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Ray's autoscaler is asked for; waiting takes no time."""
    requests: list[Any] = []
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: requests.append(bundles))
    clock = iter(range(10**6))
    monkeypatch.setattr(nodes, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(clock)))
    monkeypatch.delenv("RAY_USAGE_STATS_KUBERAY_IN_USE", raising=False)
    return requests


WAITING = "at most 600 s (wait_seconds in the profile): there are 0 GPUs, and training asks for 16 (train.workers)\n"
SIXTEEN = Cluster(device="cuda", train=TrainPool(workers=16), wait_seconds=600)


@pytest.mark.parametrize("kuberay", [False, True])
def test_nodes_that_start_late_are_asked_for_and_waited_for(
    requests: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kuberay: bool
) -> None:
    """Where KubeRay or a launcher of Ray's starts them; the autoscaler's request does not outlive the wait."""
    if kuberay:
        monkeypatch.setenv("RAY_USAGE_STATS_KUBERAY_IN_USE", "1")
    ray = Growing(0, 0, 8, 16, labels={} if kuberay else {"ray.io/node-group": "workers"})
    nodes.wait_for_nodes(ray, SIXTEEN)
    assert ray.size == 16
    assert requests == [[{"GPU": 1}] * 16, []]
    assert capsys.readouterr().err == f"waiting for nodes, {WAITING}"


def test_the_wait_has_an_end(requests: list[Any]) -> None:
    """With fewer GPUs than asked for, the check of the machine says what is accepted."""
    ray = Growing(0, 8, labels={"ray.io/node-group": "workers"})
    nodes.wait_for_nodes(ray, SIXTEEN)
    assert ray.size == 8
    assert requests == [[{"GPU": 1}] * 16, []]
    assert 600 <= nodes.time.monotonic() <= 610


@pytest.mark.parametrize(
    ("device", "advice"), [("cuda", r"\."), ("auto", r", or write `device: cpu` in the profile\.")]
)
def test_no_run_takes_cpus_because_gpus_came_late(requests: list[Any], device: Any, advice: str) -> None:
    """On a cluster that may start nodes, `device: auto` asks for a GPU too."""
    ray = Growing(0, labels={"ray.io/node-group": "head"})
    says = (
        r"^the cluster has no GPU, and none came in 600 s \(wait_seconds in the profile\)\. .* start such nodes"
        + advice
    )
    with pytest.raises(StepFailed, match=says):
        nodes.wait_for_nodes(ray, Cluster(device=device, train=TrainPool(workers=None), wait_seconds=600))
    assert requests == [[{"GPU": 1.0}], []]


def test_a_training_on_part_of_a_gpu_asks_for_that_part(requests: list[Any]) -> None:
    ray = Growing(0, 0, 1, labels={"ray.io/node-group": "head"})
    nodes.wait_for_nodes(ray, Cluster(device="auto", train=TrainPool(workers=1, gpus=0.25), wait_seconds=600))
    assert requests == [[{"GPU": 0.25}], []]


def test_a_cluster_to_which_nothing_adds_nodes_is_not_waited_for(
    requests: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ray = Growing(8, labels={})
    nodes.wait_for_nodes(ray, SIXTEEN)
    assert requests == []
    assert nodes.time.monotonic() == 0
    assert capsys.readouterr().err == ""


def test_a_cluster_that_is_large_enough_is_not_waited_for(requests: list[Any]) -> None:
    nodes.wait_for_nodes(Growing(16, labels={"ray.io/node-group": "workers"}), SIXTEEN)
    assert requests == []
