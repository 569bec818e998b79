"""Cluster profiles: what they accept, how many workers and threads they give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sparring.components.config import UserError
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.cluster import Cluster
from tests.support.errors import refused
from tests.support.tiny import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_can_be_read(path: Path) -> None:
    text = path.read_text()
    if "kind: Ray" in text or "cluster_name:" in text:  # tests/system/test_cluster_files.py
        pytest.skip("not a profile")
    assert text.startswith("# ")
    clusters.read_cluster(path)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with refused("nowhere.yaml", "missing-file"):
        clusters.read_cluster(tmp_path / "nowhere.yaml")


def test_an_experiment_is_no_profile() -> None:
    with pytest.raises(UserError, match=r"configs/demo\.yaml: an experiment; accepted: a cluster profile, such as"):
        clusters.read_cluster(ROOT / "configs/demo.yaml")


def test_a_place_is_no_key_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mode: inline\nstore: s3://bucket/team\n")
    with pytest.raises(UserError, match=r"mine\.yaml: store: no key of a profile; accepted: `--store FOLDER` before"):
        clusters.read_cluster(tmp_path / "mine.yaml")


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


def test_an_address_with_a_password_is_refused(tmp_path: Path) -> None:
    """It would be in every record."""
    (tmp_path / "x.yaml").write_text("address: ray://me:swordfish@head:10001\n")
    with pytest.raises(UserError, match=r"x\.yaml: address: it has more than a host and a port") as refused:
        clusters.read_cluster(tmp_path / "x.yaml")
    assert "swordfish" not in str(refused.value)
