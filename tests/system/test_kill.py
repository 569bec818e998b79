"""A run that was killed, however often and wherever, ends as one that never was: repeat the command to resume."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import killing, tiny
from tests.support.tiny import ROOT, Place

BEGUN = ("data", "bm25 index", "bm25 ranking (test)", "start retriever", "start ranker", "tokens")


@pytest.fixture
def begun(played: Place, tmp_path: Path) -> Place:
    """The same run with only its beginning done: what needs Java, and the start models."""
    place = tiny.place(tmp_path / "begun", yaml.safe_load(played.config.read_text()))
    for label in BEGUN:
        shutil.copytree(played.artifact(label), place.store / played.artifact(label).name)
    return place


def assert_same(place: Place, reference: Place) -> None:
    """The same rankings, weights, groups and measures, byte for byte, and nothing left over."""
    assert tiny.results(place.store) == tiny.results(reference.store)
    for part in ("rows", "comparisons"):
        assert place.metrics()[part] == reference.metrics()[part]
    names = {path.name for path in reference.store.iterdir()}
    assert {path.name for path in place.store.iterdir()} == names
    for name in names:
        assert files(place.store / name) == files(reference.store / name)
    logs = [updates(path) for path in sorted(place.store.glob("train-*/metrics.jsonl"))]
    assert logs
    assert all(log == list(range(1, len(log) + 1)) for log in logs)  # log_every is 1


def files(artifact: Path) -> set[str]:
    """What lies in an artifact."""
    return {str(path.relative_to(artifact)) for path in artifact.rglob("*")}


def updates(log: Path) -> list[int]:
    """The updates that a training's log speaks of."""
    return [yaml.safe_load(line)["update"] for line in log.read_text().splitlines()]


def test_a_driver_killed_again_and_again(begun: Place, played: Place) -> None:
    """In the middle of encoding, after a checkpoint, and between a training's last file and its record."""
    assert killing.run(begun, "shard", 4) == -signal.SIGKILL
    encoding = {path.parent.name for path in begun.store.glob("encode_documents-*/documents-*.npy")}
    assert len(encoding) == 1
    assert not (begun.store / encoding.pop() / "artifact.json").exists()

    assert killing.run(begun, "checkpoint", 2) == -signal.SIGKILL
    assert [path.name for path in sorted(begun.store.glob("train-*/checkpoints/*"))] == [
        "update-000001",
        "update-000002",
    ]

    assert killing.run(begun, "record", 1) == -signal.SIGKILL
    trained = {path.parent for path in begun.store.glob("train-*/model")}
    assert len(trained) == 1
    assert not (trained.pop() / "artifact.json").exists()

    assert begun("run") == 0
    assert_same(begun, played)


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_a_driver_killed_at_every_other_write(played: Place, tmp_path: Path) -> None:
    """Before and after files take their names, over the whole run; each time another way further."""
    place = tiny.place(tmp_path / "place", yaml.safe_load(played.config.read_text()))
    kills = 0
    while killing.run(place, "write", 23) != 0:
        kills += 1
    assert kills > 10
    assert_same(place, played)


@pytest.mark.slow  # of one step: tests/workflows/store/test_store.py
def test_two_drivers_at_once(begun: Place, played: Place) -> None:
    """Each step is done by one of them; the other waits, says so, and takes what it finds."""
    command = [sys.executable, "-m", "workflows", *begun.words("run")]
    drivers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [driver.communicate() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    tables = [out.partition("\nreport:")[0] for out, _ in outputs]
    assert tables[0].splitlines()[:12] == tables[1].splitlines()[:12]
    labels = [re.findall(r"\] (.*): done in", err) for _, err in outputs]
    peer_labels = [re.findall(r"\] (.*): done by another driver in", err) for _, err in outputs]
    assert sorted(labels[0] + labels[1]) == sorted(set(labels[0] + peer_labels[0] + labels[1] + peer_labels[1]))
    assert_same(begun, played)


# Through real Ray

RAY: dict[str, Any] = {
    "mode": "ray",
    "object_store_mb": 100,
    "map": {"workers": 2, "threads": 1},
    "train": {"workers": 1, "threads": 1},
    "retries": 2,
}


@pytest.fixture
def deadly(played: Place, beir: Path, encoder: Path, tmp_path: Path) -> dict[str, Place]:
    """A config whose training kills or stalls its process once; in two places, of which one runs undisturbed."""
    tree = tiny.dpr(beir, encoder)
    tree["train"]["updates"] = 5
    tree["train"]["losses"] = [
        {"function": "tests.support.killing.loss", "options": {"marker": str(tmp_path / "marker")}}
    ]
    return {name: tiny.place(tmp_path / name, tree, **RAY) for name in ("killed", "undisturbed")}


def undisturbed(place: Place, marker: Path) -> Place:
    """The same run without a death, in one process."""
    assert marker.exists()
    tiny.write(place.folder / "inline.yaml", tiny.INLINE)
    assert killing.run(place, "never") == 0
    return place


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_a_training_worker_and_an_encoder_killed_under_ray(deadly: dict[str, Place], tmp_path: Path) -> None:
    """Ray begins each again: the training from its last checkpoint, the shard anew."""
    assert killing.run(deadly["killed"], "encoder") == 0
    assert (tmp_path / "marker").exists()
    assert (deadly["killed"].store / "died").exists()
    for name in ("first", "died"):
        (deadly["killed"].store / name).unlink()
    assert_ray_same(deadly["killed"], undisturbed(deadly["undisturbed"], tmp_path / "marker"))


@pytest.mark.kill
@pytest.mark.timeout(1800)
def test_a_driver_killed_under_ray(deadly: dict[str, Place], tmp_path: Path) -> None:
    """While its worker is in the middle of a training with checkpoints; the same command resumes from them."""
    place = deadly["killed"]
    for target in deadly.values():
        tree = yaml.safe_load(target.config.read_text())
        tree["train"]["losses"][0]["options"]["stall"] = True
        tiny.write(target.config, tree)
    with subprocess.Popen(killing.command(place, "never"), cwd=ROOT, stderr=subprocess.DEVNULL) as driver:
        while not (tmp_path / "marker").exists():
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    assert list(place.store.glob("train-*/checkpoints/update-000002"))
    assert killing.run(place, "never") == 0
    assert_ray_same(place, undisturbed(deadly["undisturbed"], tmp_path / "marker"))


@pytest.mark.kill
@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, "Interrupted. "), (signal.SIGTERM, 143, "Terminated. ")]
)
def test_a_driver_that_is_told_to_end_says_so_in_a_line(
    number: int, status: int, said: str, deadly: dict[str, Place], tmp_path: Path
) -> None:
    """In the middle of a training under Ray, by Ctrl-C or as a machine's owner ends it."""
    place = deadly["killed"]
    tree = yaml.safe_load(place.config.read_text())
    tree["train"]["losses"][0]["options"]["stall"] = True
    tiny.write(place.config, tree)
    command = killing.command(place, "never")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        while not (tmp_path / "marker").exists():
            assert driver.poll() is None
            time.sleep(0.05)
        driver.send_signal(number)
        _, err = driver.communicate()
    assert driver.returncode == status
    assert err.splitlines()[-1].startswith(said)
    assert "Traceback" not in err
    assert "***" not in err  # the C++ trace


def assert_ray_same(place: Place, reference: Place) -> None:
    """What Ray keeps for itself beside a training is not looked at."""
    for folder in place.store.glob("train-*/ray"):
        shutil.rmtree(folder)
    assert_same(place, reference)
