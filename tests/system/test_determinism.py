"""The same config, code and machine: the same artifacts in two stores, byte for byte, whatever process made them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparring.workflows.store.comparison import first_difference
from tests.support import tiny
from tests.support.recipes import RECIPES
from tests.support.tiny import ROOT, Place


def again(place: Place, folder: Path) -> Place:
    """The same experiment once more, in a store of its own and a process of its own, in which sets have another order
    and the draws of Python, NumPy and torch that no seed decides begin elsewhere."""
    twin = tiny.place(folder, yaml.safe_load(place.config.read_text()))
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "workflows", *twin.words("run")]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return twin


def assert_same(place: Place, reference: Place) -> None:
    assert first_difference(place.store, reference.store) is None
    for part in ("rows", "comparisons"):
        assert place.metrics()[part] == reference.metrics()[part]


def test_ar2_is_the_same_in_two_stores(played: Place, tmp_path: Path) -> None:
    """Dropout, mining and every tie among scores too."""
    assert_same(played, again(played, tmp_path / "again"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "ar2"])
def test_every_recipe_is_the_same_in_two_stores(recipe: str, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path / "place", RECIPES[recipe](tmp_path, encoder))
    assert place("run") == 0
    assert_same(place, again(place, tmp_path / "again"))
