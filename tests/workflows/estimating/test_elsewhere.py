"""Estimates for machines, collections and stores that are not here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.command_line import main
from sparring.workflows.distributed.cluster import read_cluster
from sparring.workflows.estimating.estimate import estimate
from sparring.workflows.estimating.site import site
from sparring.workflows.estimating.table import estimate_text
from sparring.workflows.experiments import loading
from sparring.workflows.quantities import size
from sparring.workflows.store import s3
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support import tiny
from tests.support.profiles import profile, stated
from tests.support.tiny import ROOT


def test_a_billion_documents_on_a_cluster_that_is_not_here(config: Path, tmp_path: Path, said: tiny.Said) -> None:
    """A flat index is refused with the key to change and an index that fits."""
    words = [
        "--store",
        str(tmp_path / "store"),
        "--runs",
        str(tmp_path / "runs"),
        "plan",
        str(config),
        "--estimate",
        "--cluster",
        str(stated(tmp_path)),
        "--assume",
        "documents=1e9",
        "--assume",
        "queries=500000",
    ]
    assert main([*words, "--set", "retriever.model=someone/model", "--set", "search.index=Flat"]) == 2
    out, error = said()
    assert "about 1,000,000,000 documents; queries: 500,000 train, 10,000 of each other split" in out
    assert "breaks first: start index and " in out
    assert "someone/model is not here: taken to be as large as BERT's base" in out
    assert "error: this cannot fit: start index" in error
    assert "an index Flat takes 3.1 TB on one machine, and there are 512 GB of memory" in error
    assert "to change: search.index: IVF262144,PQ64 (72 GB)" in error
    assert not (tmp_path / "runs").exists()
    assert main([*words, "--set", "retriever.model=someone/model", "--set", "search.index='IVF262144,PQ64'"]) == 0, (
        said()
    )


PASSAGES = {"queries": 502_939, "queries.dev": 6_980}
BILLION = ["search.index=IVF262144,PQ64", "encode.shard=1000000"]


@pytest.mark.parametrize(
    ("config", "assumed", "sets", "days", "share"),
    [
        ("msmarco", {"documents": 8.8e6, **PASSAGES}, [], 0.2, 0.8),
        ("nq", {"documents": 21e6, "queries": 58_880, "document_tokens": 130}, [], 0.5, 0.8),
        ("msmarco", {"documents": 1e9, **PASSAGES}, BILLION, 7, 0.1),
    ],
)
def test_four_machines_with_eight_gpus_are_busy_and_their_head_stays_small(
    config: str, assumed: dict[str, float], sets: list[str], days: float, share: float, tmp_path: Path
) -> None:
    """AR2 with the paper's numbers, also on Wikipedia and a billion documents."""
    nodes = graph(loading.read(ROOT / f"configs/ar2/{config}.yaml", sets, tmp_path).wanted)
    machines = site(read_cluster(ROOT / "cluster/h100.yaml"), tmp_path)
    waiting = {node.fingerprint for node in nodes}
    expected = estimate(nodes, waiting, machines, Store(tmp_path / "s"), assumed=assumed)
    assert not expected.problems
    assert not expected.unknown
    assert expected.seconds < days * 86_400
    assert expected.gpu_share > share
    assert expected.head_memory < 8e9
    assert expected.driver < expected.kept / 30
    assert f"GPUs compute {expected.gpu_share:.0%} of the time; longest without them: ingest " in estimate_text(
        expected
    )


@pytest.mark.parametrize(
    ("hardware", "found"),
    [
        ({"disk_gb": 0.001}, r"disk: .* must be free, and there are 1.0 MB"),
        ({"gpu_memory_gb": 0.0001}, r"on a GPU, and there are 100 kB of memory; to change: in the profile"),
        ({"memory_gb": 1}, r"on one machine, and there are 1.0 GB of memory"),
    ],
)
def test_disk_and_memory_that_are_not_there_are_named(
    config: Path, tmp_path: Path, hardware: dict[str, Any], found: str
) -> None:
    site_profile = read_cluster(stated(tmp_path, hardware))
    nodes = graph(loading.read(config, [], tmp_path).wanted)
    result = estimate(
        nodes,
        {node.fingerprint for node in nodes},
        site(site_profile, tmp_path),
        Store(tmp_path / "s"),
        assumed={"documents": 1e5},
    )
    assert any(re.search(found, problem) for problem in result.problems), result.problems


def test_a_store_on_s3_is_not_asked_where_neither_machines_nor_data_are_here(
    config: Path, tmp_path: Path, said: tiny.Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*words: Any) -> None:
        raise AssertionError("S3 was asked")

    monkeypatch.setattr(s3, "file_system", asked)
    words = [
        "--store",
        "s3://bucket/prefix",
        "--runs",
        str(tmp_path / "runs"),
        "plan",
        str(config),
        "--estimate",
        "--cluster",
    ]
    assert main([*words, str(stated(tmp_path)), "--assume", "documents=1e5"]) == 0, said()
    out, _ = said()
    assert "note: all of it is written to s3://bucket/prefix, whose transfers and price are not in the sums" in out
    assert main([*words, str(stated(tmp_path))]) == 2  # the data may have been ingested there
    assert "S3 was asked" in said()[1]
    assert main([*words, str(profile(tmp_path)), "--assume", "documents=1e5"]) == 2
    assert "S3 was asked" in said()[1]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"train": {"workers": 16}},
            "train.workers: 16 workers with a GPU each are asked for, and there are 8 GPUs; accepted: 1 to 8",
        ),
        (
            {"map": {"threads": 65}},
            "map.threads: 65 for each worker are asked for, and no machine has more than 64 cores",
        ),
        ({"gpus": 0}, "device: cuda is asked for, and there is no GPU in the Ray cluster"),
    ],
)
def test_more_workers_than_the_stated_machines_have_processors_are_refused(
    config: Path, tmp_path: Path, said: tiny.Said, keys: dict[str, Any], says: str
) -> None:
    hardware = {"nodes": 1, **{key: keys.pop(key) for key in ("gpus",) if key in keys}}
    words = ["plan", str(config), "--estimate", "--assume", "documents=1e5", "--cluster"]
    assert main([*words, str(stated(tmp_path, hardware, **keys))]) == 2
    assert f"error: cluster: {says}" in said()[1]


def test_what_a_process_takes_on_a_gpu_is_a_column_where_there_are_gpus(config: Path, tmp_path: Path) -> None:
    nodes = graph(loading.read(config, [], tmp_path).wanted)

    def found(path: Path) -> Any:
        return estimate(
            nodes,
            {node.fingerprint for node in nodes},
            site(read_cluster(path), tmp_path),
            Store(tmp_path / "s"),
            assumed={"documents": 1e5},
        )

    elsewhere = found(stated(tmp_path))
    training = next(row for row in elsewhere.rows if row.node.function.__name__ == "train")
    assert training.gpu_memory == training.work.needs[0].bytes
    head, *lines = estimate_text(elsewhere).splitlines()
    columns = {
        line.partition("  ")[0]: line[head.index("memory") + 6 : head.index("on a GPU") + 8].strip()
        for line in lines[: len(nodes) + 1]
    }
    assert columns["BM25 measures"] == "-"
    assert columns[training.node.label] == size(training.gpu_memory)
    assert columns["in all"] == size(max(row.gpu_memory for row in elsewhere.rows))
    assert f"memory of a process on a GPU: {columns['in all']} of 80.0 GB" in lines
    assert "on a GPU" not in estimate_text(found(profile(tmp_path)))
