"""Maps over shards: how busy a driver keeps many GPUs, and how soon a step's first shard is done.

    make bench ARGS="-k maps"      (SPARRING_BENCH_WORKERS, _SHARDS: processes with a GPU each; shards of each step)

Ray is told that this machine has so many GPUs. A shard is a sleep of 0.12 s, and a file. So the table shows what the
driver, Ray, the processes and the disk add. Three steps follow each other: the processes start in the first one, and
stay. Ray gives its workers a niceness of 15, which leaves them nothing next to other programs. Here they have 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
WORKERS = int(os.environ.get("SPARRING_BENCH_WORKERS", "32"))
SHARDS = int(os.environ.get("SPARRING_BENCH_SHARDS", "1280"))
SECONDS = 0.12
STEPS = """
import json, sys, time
from pathlib import Path
from sparring.workflows.distributed.session import set_ray_environment, stop_ray
set_ray_environment()
import ray
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from tests.support.sleeping import Sleeper

place, workers, shards, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
ray.init(address="local", num_cpus=4, num_gpus=workers, include_dashboard=False, log_to_driver=False,
         logging_level="ERROR", object_store_memory=200 * 2**20)
machine = resolve_machine(Cluster(device="cuda"))
for step in range(3):
    out = place / str(step)
    out.mkdir()
    began, cpu = time.time(), time.process_time()
    map_shards(Sleeper, row_shards(shards, 1, "part-{:05d}"), out=out, machine=machine, pool=machine.cluster.map,
               unit="shards", gpu=True, seconds=seconds)
    ended = time.time()
    first = min(path.stat().st_mtime for path in out.glob("part-*"))
    print(json.dumps({"first": first - began, "seconds": ended - began, "cpu": time.process_time() - cpu}), flush=True)
stop_ray()
"""


def test_maps(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STEPS, str(tmp_path), str(WORKERS), str(SHARDS), str(SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "RAY_worker_niceness": "0"}
    )
    rows = []
    ideal = SHARDS * SECONDS / WORKERS
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]  # Ray prints warnings too
    for number, step in enumerate(steps):
        rows.append(
            [
                "first" if number == 0 else "warm",
                f"{step['first']:.2f}",
                f"{step['seconds']:.2f}",
                f"{SHARDS / step['seconds']:.0f}",
                f"{ideal / step['seconds']:.0%}",
                f"{step['cpu'] / SHARDS * 1000:.2f}",
            ]
        )
    head = ["step", "first shard, s", "all, s", "shards/s", "of ideal", "driver, CPU ms a shard"]
    lines = [
        f"{WORKERS} processes with a GPU each, {SHARDS:,} shards of {SECONDS} s in each step: {ideal:.2f} s at best, "
        f"{WORKERS / SECONDS:.0f} shards/s.",
        machine(ROOT),
    ]
    write("Maps over shards", 'make bench ARGS="-k maps"', head, rows, lines)
