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

from tests import killing, tiny
from tests.test_kill import RAY, assert_ray_same
from tests.tiny import ROOT, Place

KILLS = 30


class Victim(NamedTuple):
    """A kind of process of a run, and when it is killed."""

    parts: tuple[str, ...]
    """What its command line has in it."""
    share: int
    """How often, of all kills."""
    within: float
    """Seconds from when there is one, at most."""


VICTIMS = {
    "encoder": Victim(("ray::", "_fill"), 4, 1.0),
    "train worker": Victim(("ray::", "RayTrainWorker"), 4, 6.0),
    "node": Victim(("--raylet_socket_name",), 2, 15.0),
    "head": Victim(("/gcs_server",), 1, 15.0),
    "driver": Victim((), 2, 25.0),
}
PATIENCE = 30.0
"""Seconds to wait for a victim; then another kind is drawn."""


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
    other = tiny.place(tmp_path / "undisturbed", tree, java=java)
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
        while driver.poll() is None and sum(kills.values()) < KILLS:
            kind = draw.choices(list(VICTIMS), [victim.share for victim in VICTIMS.values()])[0]
            given_up = time.monotonic() + PATIENCE
            while driver.poll() is None and not _there(driver.pid, kind) and time.monotonic() < given_up:
                time.sleep(0.05)
            time.sleep(draw.uniform(0, VICTIMS[kind].within))
            with suppress(psutil.NoSuchProcess):
                if driver.poll() is None and (there := _there(driver.pid, kind)):
                    draw.choice(there).kill()
                    kills[kind] += 1
                    print(f"killed: {kind}", file=sys.stderr, flush=True)
        return driver.wait()


def _there(driver: int, kind: str) -> list[psutil.Process]:
    """Those of a driver's processes that are of a kind."""
    found = []
    with suppress(psutil.NoSuchProcess):
        if kind == "driver":
            return [psutil.Process(driver)]
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = " ".join(process.cmdline())
                if all(part in line for part in VICTIMS[kind].parts):
                    found.append(process)
    return found
