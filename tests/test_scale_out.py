"""Three nodes of Ray on one machine give what one process gives, and each of them does its part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tests import tiny
from tests.tiny import ROOT, Place

NODES = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
for _ in range(2):
    cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
from workflows.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_nodes_give_the_same(played: Place, tmp_path: Path) -> None:
    """Encoding, BM25, scoring and search over nodes, to the bit with the same models; training spans two of them."""
    profile = {
        "mode": "ray", "address": "auto", "device": "cpu", "retries": 0, "pass_tokens": 256,
        "map": {"workers": 3, "threads": 1}, "java": {"workers": 2, "threads": 1},
        "train": {"workers": 2, "threads": 1},
    }  # fmt: skip
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()), **profile)
    done = subprocess.run(
        [sys.executable, "-c", NODES, *place.words("run")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    records = {record["label"]: record for record in tiny.records(place.store)}
    nodes = {label: [name for name in record["nodes"] if "(" in name] for label, record in records.items()}
    assert len(nodes["warm retriever vectors"]) == 3
    assert len(nodes["warm retriever"]) == len(nodes["ranker 1"]) == 2
    theirs = {(row["system"], row["measure"]): row["value"] for row in played.metrics()["rows"]}
    for row in place.metrics()["rows"]:
        assert row["value"] == pytest.approx(theirs[row["system"], row["measure"]], abs=0.05)
    found, wanted = (pq.read_table(one.artifact("bm25 ranking") / "ranking.parquet") for one in (place, played))
    assert found.equals(wanted)
    for one, other in zip(*(vectors(p, "warm retriever vectors") for p in (place, played)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def vectors(place: Place, label: str) -> list[np.ndarray]:
    """Of an encoding, file by file."""
    return [np.load(path) for path in sorted(place.artifact(label).glob("*.npy"))]
