"""A cluster that was joined: its nodes are waited for and looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from components.config import UserError
from workflows import nodes
from workflows.cluster import Cluster, Pool


def test_a_cluster_that_can_do_the_work(ray: Cluster, tmp_path: Path) -> None:
    nodes.meet(ray, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_which_device_auto_takes_is_said(ray: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPU nodes that are still coming would not be used."""
    nodes.meet(ray.model_copy(update={"device": "auto"}), tmp_path / "store")
    assert capsys.readouterr().err == "device: auto: models run on CPUs: there are 0 GPUs\n"
    nodes.meet(ray, tmp_path / "store")
    assert capsys.readouterr().err == ""


def test_a_store_in_a_directory_that_is_not_there(ray: Cluster, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"--store {tmp_path}/a/b: there is no {tmp_path}/a on the cluster; accepted: "
    ):
        nodes.meet(ray, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_see_the_store(tmp_path: Path) -> None:
    said = nodes._look(str(tmp_path / "probe"), {})
    assert said == f"does not see {tmp_path}; the store must be on a filesystem that all nodes share"


def test_a_node_with_other_packages(ray: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = {**nodes.locked(), "ray": "1.0", "no-such-package": "2.0"}
    monkeypatch.setattr(nodes, "locked", lambda: lock)
    with pytest.raises(UserError) as caught:
        nodes.meet(ray, tmp_path / "store")
    assert re.fullmatch(
        r"the cluster's node [\d.]+: its packages are not those of cluster/requirements\.lock: "
        r"ray 2\.60\.0 \(lock: 1\.0\), no-such-package missing \(lock: 2\.0\)",
        str(caught.value),
    )
    assert list((tmp_path / "store").iterdir()) == []


def test_only_the_first_of_many_other_packages_are_named(tmp_path: Path) -> None:
    (tmp_path / "probe").touch()
    said = nodes._look(str(tmp_path / "probe"), {f"no-such-package-{i}": "1" for i in range(5)})
    assert said.endswith("no-such-package-2 missing (lock: 1) and 2 more")


def test_faiss_for_gpus_takes_the_place_of_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe").touch()
    monkeypatch.setattr(nodes, "_version", {"faiss-gpu": "1.0"}.get)
    assert nodes._look(str(tmp_path / "probe"), {"faiss-cpu": "1.0"}) == ""


@pytest.mark.parametrize(
    ("device", "says"),
    [("cpu", r"train\.workers: 999 workers with a CPU each are asked for, and there are \d+ CPUs; accepted: 1 to \d+"),
     ("cuda", "device: cuda is asked for, and there is no GPU")],
)  # fmt: skip
def test_a_cluster_that_stays_too_small(ray: Cluster, tmp_path: Path, device: str, says: str) -> None:
    about = {"address": "auto", "device": device, "train": Pool(workers=999), "patience": 0}
    with pytest.raises(UserError, match=says):
        nodes.meet(ray.model_copy(update=about), tmp_path / "store")


def test_nodes_that_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ray:
        sizes = iter([0.0, 8.0, 16.0])

        def cluster_resources(self) -> dict[str, float]:
            return {"GPU": next(self.sizes)}

    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    nodes._wait(Ray(), Cluster(device="cuda", train=Pool(workers=16)))
    assert capsys.readouterr().err == "waiting for nodes: training asks for 16 GPUs, there are 0\n"
