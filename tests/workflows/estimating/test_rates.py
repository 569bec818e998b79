"""Rates of a machine: from records, from the table, from a stated cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sparring.components.models.shape import BASE
from sparring.workflows.distributed.cluster import Cluster, Hardware
from sparring.workflows.estimating import rates
from sparring.workflows.estimating.estimate import GUESSED, LEARNED, estimate
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.estimating.site import GB, Site, site
from sparring.workflows.estimating.sizes import Model
from sparring.workflows.estimating.work import Work
from sparring.workflows.experiments import loading
from sparring.workflows.steps.encode import encode_documents
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import RECORD, Store
from tests.support import tiny, toy
from tests.support.profiles import HARDWARE

ENCODE = Step("vectors", encode_documents, {}, "0" * 64, {})
FUSE = Step("fused", fuse, {}, "1" * 64, {})


def encoding(amount: float = 1e12, **more: Any) -> Work:
    """Encode texts with a BERT of the base size."""
    model = Model(toy.retriever_config("x/y"), BASE)
    return Work(amount=amount, pool="map", use="encoding", model=model, **more)


def test_a_stated_cluster_takes_operations_over_its_rate() -> None:
    """1e15 operations at half of 100 teraflops on each of 16 GPUs: 1.25 s."""
    site = Site(Cluster(device="cuda", hardware=Hardware(**HARDWARE)), 2, 64, 512 * GB, 1e15, 8, 80 * GB)
    work = encoding(1e15)
    assert Rates(site)._works("encode.encode_documents", work) == pytest.approx(1.25)


def test_workers_and_threads_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "cpu_info", lambda: "flags: avx512f")
    site = Site(Cluster(mode="inline", device="cpu", map={"workers": 2, "threads": 3}), 1, 6, 1e10, 1e12)
    table = Rates(site, slowness=2.0)
    took = table._works("encode.encode_documents", encoding())
    assert took == pytest.approx(1e12 / (rates.FP32 / 2 * rates.SHARES["encoding"] * 6))
    assert table._works("fuse.fuse", Work(amount=1e6)) == pytest.approx(2e6 * rates.ROW)


@pytest.mark.parametrize(
    ("flags", "precision", "operations"),
    [("avx512_bf16 amx_bf16", "bf16", 4.6e11), ("amx_bf16", "fp32", 1.4e11), ("avx512f", "bf16", 1.4e11)],
)
def test_the_table_follows_the_instructions(
    monkeypatch: pytest.MonkeyPatch, flags: str, precision: str, operations: float
) -> None:
    monkeypatch.setattr(rates, "cpu_info", lambda: f"flags : {flags}")
    site = Site(Cluster(mode="inline", device="cpu"), 1, 1, 1e10, 1e12)
    assert Rates(site)._operations(encoding(precision=precision)) == pytest.approx(
        operations * rates.SHARES["encoding"]
    )


def test_a_process_imports_once() -> None:
    site = Site(Cluster(mode="inline", device="cpu"), 1, 2, 1e10, 1e12)
    table = Rates(site)
    first, second = table.seconds(ENCODE, encoding()), table.seconds(ENCODE, encoding())
    assert first - second == pytest.approx(rates.FIRST["inline"])
    assert table.seconds(FUSE, Work(amount=0.0)) == rates.STEP


def test_the_first_loop_in_a_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = [1.0], [*[rates.LOOP] * 40, 0.5]  # seconds of each loop, the last first
    clock = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(rates, "time", clock)
    monkeypatch.setattr(rates, "_loop", lambda: now.append(now.pop() + took.pop()))
    assert rates.slowness() == pytest.approx((1.0, 1.0))


@pytest.fixture
def records(played: tiny.Place, tmp_path: Path) -> Callable[..., Store]:
    """A function that copies the records and collections of a finished run to a store, with changes to each record."""

    def copied(change: Callable[[dict[str, Any]], None] = lambda record: None) -> Store:
        store = Store(tmp_path / "store")
        for path in played.store.glob(f"*/{RECORD}"):
            record = json.loads(path.read_text())
            record["time"] |= {"compute": 2.0, "files": 1.0}
            change(record)
            folder = store.root / path.parent.name
            folder.mkdir(parents=True)
            (folder / RECORD).write_text(json.dumps(record))
            if record["function"].endswith("ingest"):
                for table in path.parent.glob("*.parquet"):
                    (folder / table.name).symlink_to(table)
        return store

    return copied


def test_records_of_earlier_runs_give_rates(played: tiny.Place, records: Callable[..., Store], tmp_path: Path) -> None:
    """Each record took 3 s, so another run of the same steps takes as long."""
    cluster = Cluster.model_validate(yaml.safe_load((played.folder / "inline.yaml").read_text()))
    nodes = graph(loading.read(played.config, [], tmp_path).wanted)
    store, waiting = records(), {node.fingerprint for node in nodes}
    expected = estimate(nodes, waiting, site(cluster, tmp_path), store, assumed={})
    models = [row for row in expected.rows if row.work is not None and row.work.use]
    assert models
    assert {row.spread for row in models} == {LEARNED}
    trained = [row for row in models if row.node.function.__name__ == "train"]
    keys = [rates.rate_key("train.train", row.work) for row in trained if row.work]
    for key in keys:
        alike = [row.work.amount for row, its_key in zip(trained, keys, strict=True) if row.work and its_key == key]
        assert expected.rates.learned[key] == pytest.approx(3.0 * len(alike) / sum(alike))
    assert {row.spread for row in expected.rows if row not in models} == {GUESSED}


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["machine"].update(processor="another"),
        lambda record: record["cluster"].update(device="cuda"),
        lambda record: record.update(inputs={"of": "another version"}),
    ],
)
def test_other_machines_profiles_and_versions_give_no_rates(
    played: tiny.Place, records: Callable[..., Store], change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    cluster = Cluster.model_validate(yaml.safe_load((played.folder / "inline.yaml").read_text()))
    assert rates.learn_rates(site(cluster, tmp_path), records(change)) == {}
