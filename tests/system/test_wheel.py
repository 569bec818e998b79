"""The wheel: one package, with all that a checkout has, which reads and writes the same artifacts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.tiny import ROOT, Place

FOLDERS = ("components", "workflows", "configs", "cluster")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: building writes into the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*FOLDERS, "sparring"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run(command, cwd=folder, check=True)
    (built,) = folder.glob("sparring-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def called(place: Path, cwd: Path, *words: str) -> str:
    """What the command prints, of the package in a place."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-m", "sparring", *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_one_package_with_every_file(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"sparring", "sparring-0.1.0.dist-info"}
    wanted = [
        path.relative_to(ROOT)
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]
    of_set_up = {"cluster/Dockerfile", "cluster/Dockerfile.dockerignore", "cluster/find-python.sh"}
    of_set_up |= {f"cluster/{name}.py" for name in ("environment", "licences")}
    lacking = {str(path) for path in wanted if f"sparring/{path}" not in names}
    assert {path for path in lacking if not path.endswith(".md")} == of_set_up


def test_plans_are_those_of_the_checkout(site: Path, tmp_path: Path) -> None:
    for config in ("configs/demo.yaml", "configs/ear/scifact.yaml", "configs/papers/simlm/table2.yaml"):
        assert called(site, tmp_path, "plan", config) == called(ROOT, tmp_path, "plan", config)


def test_a_checkouts_artifacts_are_the_wheels_and_the_other_way_round(
    site: Path, tmp_path: Path, beir: Path, encoder: Path
) -> None:
    for first, second in ((site, ROOT), (ROOT, site)):
        place: Place = tiny.place(tmp_path / first.name, tiny.dpr(beir, encoder))
        called(first, place.folder, *place.words("run", "--until", "bm25 ranking (test)"))
        plan = called(second, place.folder, *place.words("plan"))
        ranking = next(line for line in plan.splitlines() if line.startswith("bm25 ranking (test)"))
        assert " done " in ranking
        called(second, place.folder, *place.words("run"))
        before = tiny.contents(place.store)
        assert "nothing to run" in called(first, place.folder, *place.words("run"))
        assert tiny.contents(place.store) == before
