"""One run, killed thirty times at random: its workers, the node they are on, the head of its Ray, the driver itself."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import yaml

from sparring.workflows.chaos import victims
from tests.support import killing, tiny
from tests.support.tiny import ROOT, Place
from tests.system.test_kill import RAY, assert_ray_same

KILLS = 30


class Victim(NamedTuple):
    """When processes of a kind are killed."""

    share: int
    """How often it lies in the bag that victims are drawn from."""
    within: float
    """Seconds from when there is one, at most."""


VICTIMS = {
    "map worker": Victim(4, 1.0),
    "train worker": Victim(4, 10.0),
    "node": Victim(2, 15.0),
    "head": Victim(1, 15.0),
    "driver": Victim(2, 25.0),
}
PATIENCE = 30.0
"""Seconds to wait for a victim; then another kind has its turn, and this one later."""
STEPS = 16
"""Updates of each training: enough that one begun again from nothing does many of them twice."""


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_thirty_kills(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same artifacts as of a run that was left alone; done twice is what was under way, and no more.

    A run ends early only with its driver, its node or its head: workers that die are replaced.
    """
    tree, log = yaml.safe_load(played.config.read_text()), tmp_path / "log"
    monkeypatch.setenv(killing.LOG, str(log))
    for training in _trainings(tree):
        training |= {"losses": [{"function": "tests.support.killing.slow"}], "updates": STEPS}
    tree["controls"] |= {name: [{"function": "tests.support.killing.slow"}] for name in ("in_batch", "ance")}
    tree["encode"]["shard"] = 4
    tree["seeds"] = [1, 2]  # so that there is enough to do for so many kills
    java = {"workers": 1, "threads": 1}  # a Lucene index has a segment for each thread
    killed = tiny.place(tmp_path / "killed", tree, **{**RAY, "retries": KILLS}, java=java)
    reference = tiny.place(tmp_path / "undisturbed", tree, java=java)
    rng, bag, kills, ends = random.Random(0), list[str](), Counter[str](), Counter[int]()
    status = -1
    while status != 0:
        before = kills.copy()
        status = _hunted(killed, rng, bag, kills)
        counts = kills - before
        ends[status] += 1
        because = {0: True, 1: counts["node"] + counts["head"] > 0, -9: counts["driver"] > 0}
        assert because.get(status), f"a driver ended with {status} after {dict(counts)} was killed"
    lines = log.read_text().splitlines()
    log.unlink()
    assert killing.run(reference, "slowly") == 0
    alone = Counter(log.read_text().splitlines())
    again = _again(lines, alone)
    print(f"\n{dict(kills)}; drivers ended {dict(ends)}; done again, by the kill before it: {dict(again)}")
    assert_ray_same(killed, reference)
    assert set(kills) == set(VICTIMS)
    assert sum(kills.values()) >= KILLS
    assert {line for line in lines if not line.startswith("killed")} == alone.keys()
    everything = kills["node"] + kills["head"] + kills["driver"]
    updates, shards = (sum(n for (event, _), n in again.items() if event == kind) for kind in ("update", "shard"))
    assert updates <= kills["train worker"] + everything  # a checkpoint follows each update
    assert shards <= kills["map worker"] + 2 * everything  # two workers have a shard each


def _again(lines: list[str], alone: Counter[str]) -> Counter[tuple[str, str]]:
    """How many (updates or shards, by the kill that came last before) were done more often than by a run alone."""
    again, done, last = Counter[tuple[str, str]](), Counter[str](), ""
    for line in lines:
        event, _, rest = line.partition(" ")
        if event == "killed":
            last = rest
            continue
        done[line] += 1
        again[event, last] += done[line] > alone[line]
    return +again


def _trainings(tree: object) -> list[dict[str, object]]:
    """All that has a loss, in a config."""
    if isinstance(tree, dict):
        return ([tree] if "losses" in tree else []) + [
            training for part in tree.values() for training in _trainings(part)
        ]
    return []


def _hunted(place: Place, rng: random.Random, bag: list[str], kills: Counter[str]) -> int:
    """Run, and kill now and then until there were enough; the driver's exit status."""
    command = killing.command(place, "slowly")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=sys.stderr) as driver:
        while driver.poll() is None and sum(kills.values()) < KILLS:
            if not bag:
                bag += [kind for kind, victim in VICTIMS.items() for _ in range(victim.share)]
                rng.shuffle(bag)
            kind, given_up = bag.pop(), time.monotonic() + PATIENCE
            while driver.poll() is None and not victims.find(driver.pid, kind) and time.monotonic() < given_up:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, VICTIMS[kind].within))
            if driver.poll() is None and _killed(driver.pid, kind, rng):
                kills[kind] += 1
                killing.note(f"killed {kind}")
                print(f"killed: {kind}", file=sys.stderr, flush=True)
            else:
                bag.insert(0, kind)
        return driver.wait()


def _killed(driver: int, kind: str, rng: random.Random) -> bool:
    """Kill one of a driver's processes that are of a kind; whether there was one."""
    processes = victims.find(driver, kind)
    with suppress(psutil.NoSuchProcess):
        if processes:
            rng.choice(processes).kill()
            return True
    return False
