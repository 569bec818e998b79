"""The power is cut at any point of a step, and what had not reached the disk is gone: no artifact is half finished, and
the step that is run again ends as one that nothing happened to."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.experiments import loading
from sparring.workflows.running.executor import execute
from sparring.workflows.store import attempts
from sparring.workflows.store.comparison import artifact_difference, first_difference
from sparring.workflows.store.dag import Step, StepFailed, graph
from sparring.workflows.store.store import RECORD, Store
from tests.support import crashes, tiny
from tests.support.crashes import Survives
from tests.support.power_cut import PowerCut
from tests.support.recipes import RECIPES
from tests.support.tiny import Place

INLINE = resolve_machine(Cluster(**{**tiny.INLINE, "save_seconds": 0}))
"""With a checkpoint after every update."""
SAMPLED = ("ingest", "tokenize", "start", "encode_documents", "search", "mine", "train", "score_groups", "evaluate")
"""Steps of which some points are tried at every change."""
POINTS = 2
"""How many."""


@pytest.fixture(autouse=True)
def no_times_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a map takes, its points are the same."""
    monkeypatch.setattr(attempts, "KEEP_SECONDS", math.inf)


def kinds(place: Place) -> dict[str, Step]:
    """A step of each function that a finished run has."""
    nodes = graph(loading.read(place.config, [], place.runs).wanted)
    return {node.function.__name__: node for node in reversed(nodes)}


class Stage:
    """A store in which a step of a finished run can be run again and again; what it reads is the finished run's."""

    def __init__(self, node: Step, finished: Path, folder: Path) -> None:
        self.node, self._whole, self._folder = node, finished / node.name, folder
        self.store = Store(folder / "store")
        self.store.root.mkdir(parents=True)
        for name in {before.name for before in node.upstream}:
            (self.store.root / name).symlink_to(finished / name)
        self.out = self.store.path(node)

    def empty(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()

    def run(self) -> None:
        """Run the step, or find it finished; it is as it was in the finished run."""
        execute(self.node, self.store, INLINE, on_wait=pytest.fail)
        assert artifact_difference(self.out, self._whole) is None

    def points(self) -> int:
        """How many points it has where the power can be cut."""
        self.empty()
        with crashes.disk(self.out) as disk:
            self.run()
        return disk.points

    def cut(self, point: int) -> int:
        """Cut the power at a point, and resume from whatever may be left; whether the step was finished by then."""
        self.empty()
        survivors: dict[Survives, Path] = {survives: self._folder / survives for survives in get_args(Survives)}
        with crashes.disk(self.out, cut=point, survivors=survivors), pytest.raises((StepFailed, PowerCut)):
            execute(self.node, self.store, INLINE, on_wait=pytest.fail)
        finished = 0
        for folder in survivors.values():
            crashes.put_back(folder, self.out)
            finished += (self.out / RECORD).exists()
            if (self.out / RECORD).exists():  # then all of it is there, before anything is run
                assert artifact_difference(self.out, self._whole) is None
            self.run()
        return finished


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_step_survives_a_power_cut(kind: str, played: Place, tmp_path: Path) -> None:
    """At some points, and at the last two, around the sync of the directory with the record's name."""
    stage = Stage(kinds(played)[kind], played.store, tmp_path)
    count = stage.points()
    rng = keyed_rng("crashes", kind)
    for point in {*rng.integers(1, count - 1, POINTS).tolist(), count - 1}:
        stage.cut(point)
    assert stage.cut(count) == len(get_args(Survives))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_step_survives_a_power_cut_at_every_point(recipe: str, encoder: Path, tmp_path: Path) -> None:
    """Of steps of a kind that no recipe before has."""
    before = list(RECIPES)[: list(RECIPES).index(recipe)]
    places = {}
    for name in (*before, recipe):
        (folder := tmp_path / name).mkdir()
        places[name] = tiny.place(folder / "run", RECIPES[name](folder, encoder))
    history = frozenset().union(*(kinds(places[name]) for name in before))
    place, tried = places[recipe], Counter[str]()
    assert place("run") == 0
    for kind, node in kinds(place).items():
        if kind in history:
            continue
        stage = Stage(node, place.store, tmp_path / kind)
        for point in range(1, stage.points() + 1):
            stage.cut(point)
            tried[kind] += 1
    print(f"\n{recipe}: {tried.total()} points: {dict(tried)}")
    assert all(count >= 4 for count in tried.values())


def test_a_clock_that_jumps_changes_no_result(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day forwards or back at every look at it; no time that a record has is negative."""
    rng, now = keyed_rng("clock"), time.time
    monkeypatch.setattr(time, "time", lambda: now() + float(rng.choice([-86400.0, 0.0, 86400.0])))
    points = kinds(played)
    for kind in ("encode_documents", "train"):
        stage = Stage(points[kind], played.store, tmp_path / kind)
        stage.run()
        record = stage.store.record(points[kind])
        assert record is not None
        assert min(record["seconds"], *record["time"].values(), *record["nodes"].values()) >= 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_disk_that_fills_up_loses_nothing(played: Place, tmp_path: Path) -> None:
    """A read-only store, and fifteen disks of which each is full a little later, are said in one line; in the end the
    run is as any other."""
    (tmp_path / "disk").mkdir()
    unshare = ["unshare", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("mounting a small disk takes user namespaces")
    places = [played.config, played.folder / "inline.yaml", tmp_path / "disk", tmp_path / "runs"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "tests.support.full_disk", *map(str, places)],
        cwd=tiny.ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tried = re.findall(r"^(\d+) (\d) (.*)$", done.stdout, re.M)
    assert tried[0] == (
        "0",
        "2",
        f"error: {tmp_path}/disk/store: the store cannot be there, as {tmp_path}/disk cannot be written to "
        "(Read-only file system); accepted: another place (--store PLACE, or $SPARRING_STORE)",
    )
    assert len(tried) > 10
    assert all(status == "1" and "No space left on device" in message for _, status, message in tried[1:-1]), tried
    assert tried[-1][1] == "0"
    assert first_difference(tmp_path / "copy", played.store) is None
