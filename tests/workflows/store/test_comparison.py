"""Two runs are the same where every artifact is, but for what says when, where and how fast they went."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.workflows.store.comparison import first_difference
from tests.support.tiny import Place


@pytest.fixture
def copy(played: Place, tmp_path: Path) -> Path:
    shutil.copytree(played.store, tmp_path / "store")
    return tmp_path / "store"


def test_a_run_is_as_its_copy_on_another_host_at_another_time(played: Place, copy: Path) -> None:
    for record in copy.glob("*/artifact.json"):
        changed = {**json.loads(record.read_text()), "host": "another", "seconds": 1.5, "started": 7.0}
        record.write_text(json.dumps(changed))
    for log in copy.glob("train-*/metrics.jsonl"):
        lines = [{**json.loads(line), "seconds": 0.25} for line in log.read_text().splitlines()]
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert first_difference(copy, played.store) is None


def one(pattern: str) -> Callable[[Path], Path]:
    """The first file of a store that matches."""
    return lambda store: min(store.glob(pattern))


def last_bit(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def longer(path: Path) -> None:
    path.write_text(path.read_text().replace('"label": "', '"label": "x'))


@pytest.mark.parametrize(
    ("pattern", "change", "says"),
    [
        ("train-*/model/model.safetensors", last_bit, "differs"),
        ("search-*/ranking.parquet/*.parquet", last_bit, "differs"),
        ("train-*/artifact.json", longer, "differs"),
        ("mine-*/groups.parquet/*.parquet", Path.unlink, "is not there"),
        ("evaluate-*/artifact.json", Path.unlink, "the artifact is not finished"),
        ("search-*/ranking.parquet", lambda path: path.with_name(".ranking.parquet.0123").touch(), "left over"),
        ("mine-*", shutil.rmtree, "is not there"),
        ("mine-*", lambda path: shutil.copytree(path, path.with_name("mine-0123456789ab")), "the other run has none"),
    ],
)
def test_what_differs_is_named(
    played: Place, copy: Path, pattern: str, change: Callable[[Path], object], says: str
) -> None:
    path = one(pattern)(copy)
    change(path)
    difference = first_difference(copy, played.store)
    assert difference is not None
    assert difference.startswith(path.relative_to(copy).parts[0].partition("-")[0])
    assert says in difference
