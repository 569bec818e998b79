"""Training an adapter against training all weights: time of an update, memory, and what is kept of it.

make bench ARGS="-k test_adapters"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from sparring.components.models.configs import DualEncoderConfig
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps.start import start
from tests.benchmarks.bench_train import BATCH, CROSS_ENTROPY, mined
from tests.benchmarks.conftest import MODEL, ROOT, World, _ingested, made
from tests.benchmarks.measure import figure
from tests.benchmarks.table import machine, write

TURNS, UPDATES = 1, 4
ONE = """
import json, resource, sys, time
from pathlib import Path
from sparring.components.training import loop
from tests.benchmarks.bench_train import seconds_of_ours
from tests.benchmarks.conftest import World
told, spent, real = json.loads(sys.argv[1]), [], loop._update

def update(*words, **options):
    began = time.process_time()
    found = real(*words, **options)
    spent.append(time.process_time() - began)
    return found

loop._update = update
world = World.of(told["world"])
seconds_of_ours(world, "retriever", Path(told["groups"]), world.machine, **told["config"])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([sorted(spent)[len(spent) // 2], peak]))
"""


def test_adapters(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each training in a process of its own, by turns. Seconds are the processor's: other programs do not count."""
    root = tmp_path_factory.mktemp("adapters")
    data = _ingested(
        tmp_path_factory.mktemp("two"), {"format": "docstrings", "packages": ["numpy", "scipy"], "dev": 0.1}
    )
    world = made(
        root,
        resolve_machine(Cluster(mode="inline", device="cpu", map=Pool(workers=1, threads=cores()))),
        model=MODEL,
        data=data,
    )
    groups = mined(world, BATCH * UPDATES, 0)
    starts = {"all weights": world.retriever}
    for rank in (16,):
        starts[f"adapter of rank {rank}"] = place = world.place("start")
        start(
            place,
            world.machine,
            config=DualEncoderConfig(
                model=MODEL,
                pooling="mean",
                similarity="cosine",
                query_tokens=64,
                document_tokens=128,
                adapter={"rank": rank},
            ),
        )
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for _ in range(TURNS):
        for name, place in starts.items():
            timings[name].append(_trained(world, place, groups))
    rows = []
    for name, place in starts.items():
        seconds, peak = (median(column) for column in zip(*timings[name], strict=True))
        size = sum(path.stat().st_size for path in (place / "model").rglob("*.safetensors"))
        rows.append([name, figure(1 / seconds), figure(peak / 2**20), figure(size / 1e6)])
    lines = [
        f"Batches of {BATCH} pairs of a query and its document; the median of {UPDATES} updates; turns: {TURNS}.",
        machine(ROOT, "peft"),
    ]
    head = ["trained", "updates a second of processor time", "peak memory of the process, MiB", "weights kept, MB"]
    write("Adapters", 'make bench ARGS="-k test_adapters"', head, rows, lines)


def _trained(world: World, place: Path, groups: Path) -> tuple[float, float]:
    """Processor seconds of an update, and the process's peak of memory in bytes."""
    loss: dict[str, Any] = {"function": CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}
    arguments = {
        "world": replace(world, retriever=place).told(),
        "groups": str(groups),
        "config": {"updates": UPDATES, "batch": BATCH, "losses": [loss]},
    }
    done = subprocess.run(
        [sys.executable, "-c", ONE, json.dumps(arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak
