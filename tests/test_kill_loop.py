"""One run, killed thirty times at random: its workers, the node they are on, the head of its Ray, the driver itself."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml

from tests import killing, tiny
from tests.test_kill import RAY, assert_ray_same
from tests.tiny import ROOT, Place

KILLS = 30
VICTIMS = {
    "encoder": ("ray::", "_fill"),
    "train worker": ("ray::", "RayTrainWorker"),
    "node": ("raylet", "--raylet_socket_name"),
    "head": ("gcs_server", ""),
}
"""What a process's command line begins with, or has in it."""
WEIGHTS = {"encoder": 5, "train worker": 5, "node": 1, "head": 1, "driver": 1}
"""The three that everything else dies with are always there, workers only now and then."""


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_thirty_kills(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same artifacts as of a run that was left alone; done twice is what was under way, and no more."""
    tree, log = yaml.safe_load(played.config.read_text()), tmp_path / "log"
    monkeypatch.setenv(killing.LOG, str(log))
    for training in _trainings(tree):
        training |= {"losses": [{"function": "tests.killing.slow"}], "steps": 8}
    tree["controls"] |= {name: [{"function": "tests.killing.slow"}] for name in ("in_batch", "ance")}
    java = {"workers": 1, "threads": 1}  # a Lucene index has a segment for each thread
    killed = tiny.place(tmp_path / "killed", tree, **{**RAY, "retries": 3}, java=java)
    other = tiny.place(tmp_path / "undisturbed", tree)
    draw, kills, ends = random.Random(0), Counter[str](), Counter[int]()
    while (status := _hunted(killed, draw, kills)) != 0:
        ends[status] += 1
        assert status in (1, -9), f"the driver ended with {status}"
    done = Counter(log.read_text().splitlines())
    again = {what: sum(n - 1 for name, n in done.items() if name.startswith(what)) for what in ("update", "shard")}
    print(f"\n{dict(kills)}; drivers ended {dict(ends)}; done again: {again} of {len(done)}")
    assert sum(kills.values()) >= KILLS
    log.unlink()
    assert killing.run(other, "slowly") == 0
    assert_ray_same(killed, other)
    assert done.keys() == set(log.read_text().splitlines())
    assert again["update"] <= 2 * sum(kills.values())  # a checkpoint follows each update
    assert again["shard"] <= 2 * sum(kills.values())  # two workers have a shard each


def _trainings(tree: object) -> list[dict[str, object]]:
    """All that has a loss, in a config."""
    if isinstance(tree, dict):
        return ([tree] if "losses" in tree else []) + [one for part in tree.values() for one in _trainings(part)]
    return []


def _hunted(place: Place, draw: random.Random, kills: Counter[str]) -> int:
    """Run, and kill now and then until there were enough; the driver's exit status."""
    command = killing.command(place, "slowly")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=sys.stderr) as driver:
        time.sleep(draw.uniform(6, 14))
        while driver.poll() is None:
            if sum(kills.values()) < KILLS and (kind := _kill(driver.pid, draw)):
                kills[kind] += 1
                print(f"killed: {kind}", file=sys.stderr, flush=True)
            time.sleep(draw.uniform(1, 5))
        return driver.returncode


def _kill(driver: int, draw: random.Random) -> str:
    """Kill the driver or one of its processes; of which kind it was, or nothing where it had just gone."""
    try:
        there = {kind: processes for kind in WEIGHTS if (processes := _of_kind(psutil.Process(driver), kind))}
        kind = draw.choices(list(there), [WEIGHTS[kind] for kind in there])[0]
        draw.choice(there[kind]).kill()
    except psutil.NoSuchProcess:
        return ""
    return kind


def _of_kind(driver: psutil.Process, kind: str) -> list[psutil.Process]:
    """Those processes of a driver that are there now."""
    if kind == "driver":
        return [driver]
    first, part = VICTIMS[kind]
    lines = ((process, " ".join(process.cmdline())) for process in driver.children(recursive=True))
    return [process for process, line in lines if first in line and part in line]
