"""What is sent to a cluster for a job, and what is not."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import sparring
from sparring.components.config import UserError
from sparring.components.yaml_files import read_yaml
from sparring.workflows import program
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed import job_package, session
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.experiments import loading
from sparring.workflows.program import CALLED_AS
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.store.code_version import code_version
from sparring.workflows.store.store import Store
from tests.support import tiny
from tests.support.errors import refused
from tests.support.tiny import ROOT, Place


@pytest.fixture
def place(beir: Path, encoder: Path, tmp_path: Path) -> Place:
    return tiny.place(tmp_path / "here", tiny.dpr(beir, encoder))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_code_is_sent(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    job_package.pack(place.config, Cluster(), folder)
    wanted = {
        "sparring/__main__.py",
        "sparring/workflows/command_line.py",
        "sparring/workflows/report/templates/report.html",
        "sparring/cluster/requirements.lock",
        "sparring/configs/demo.yaml",
    }
    assert wanted <= files(folder)
    assert not [name for name in files(folder) if "__pycache__" in name]


def test_nothing_else_is_sent(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no results, no environment, no history, and no keys that lie about."""
    root = tmp_path / "root"
    for name in (*job_package.CODE, "store", "runs", "data", ".venv", ".git", "notes"):
        (root / name / "__pycache__").mkdir(parents=True)
        for file in ("one.py", ".token", "__pycache__/one.pyc"):
            (root / name / file).write_text("swordfish")
    (root / ".env").write_text("swordfish")
    monkeypatch.setattr(job_package, "ROOT", root)
    folder = tmp_path / "folder"
    config = job_package.pack(place.config, Cluster(), folder)
    modules = {path.name for path in Path(sparring.__path__[0]).glob("*.py")}
    sent = {*modules, *(f"{name}/one.py" for name in job_package.CODE), "sent/cluster.yaml", config}
    assert files(folder) == {f"sparring/{name}" for name in sent}


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_cannot_be_sent_is_named(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    root = tmp_path / "root"
    for name in job_package.CODE:
        (root / name).mkdir(parents=True)
    odd = root / "configs" / "odd"
    odd.symlink_to("nowhere") if kind == "link" else os.mkfifo(odd)
    monkeypatch.setattr(job_package, "ROOT", root)
    with pytest.raises(UserError, match=f"^{odd}: cannot be read, and all of configs/ is sent with .*; remove it$"):
        job_package.pack(place.config, Cluster(), tmp_path / "folder")


def test_an_experiment_is_sent_whole(
    place: Place, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged with what it is based on, so that it means there what it means here; the run's folder means it too when
    the job's is gone."""
    second = tiny.write(tmp_path / "other.yaml", {"base": str(place.config), "k": 10, "data": {"on_bad": "drop"}})
    both = tiny.write(
        tmp_path / "both.yaml",
        {
            "recipe": "compare",
            "baseline": "one",
            "systems": ["retriever"],
            "experiments": {"one": str(place.config), "other": {"file": str(second), "sets": ["k=11"]}},
            "curves": {"a line": {2: "one", 11: "other"}},
        },
    )
    zeroshot = tiny.write(
        tmp_path / "zeroshot.yaml",
        {
            "recipe": "zeroshot",
            "experiment": str(second),
            "collections": {"toy": {"data": read_yaml(place.config)["data"]}},
        },
    )
    named = {"one": "other.yaml", "other": "here/tiny.yaml"}
    sibling = tiny.write(tmp_path / "beside.yaml", {**read_yaml(both), "experiments": named})
    nested = tiny.write(
        tmp_path / "nested.yaml",
        {**read_yaml(both), "experiments": {"one": str(place.config), "other": "further/on.yaml"}},
    )
    (tmp_path / "further").mkdir()
    tree = tiny.dpr(beir, encoder)
    tiny.write(tmp_path / "further" / "start.yaml", tree | {"k": 7})
    tiny.write(tmp_path / "further" / "on.yaml", tree | {"start_from": "start.yaml"})
    root = tmp_path / "root"
    (root / "configs").mkdir(parents=True)
    custom = tiny.write(root / "configs" / "own.yaml", read_yaml(both))
    for config in (second, both, sibling, zeroshot, nested, custom, ROOT / "configs" / "ar2" / "msmarco.yaml"):
        folder, run = tmp_path / "job" / config.stem, tmp_path / "runs" / config.stem
        folder.mkdir(parents=True)
        plan = loading.read(config, [], tmp_path)
        with monkeypatch.context() as patch:
            if config == custom:
                patch.setattr(job_package, "ROOT", root)
            sent = job_package.pack_experiment(config, folder)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv(CALLED_AS, "sparring")
            for module in (loading, program):
                patch.setattr(module, "ROOT", folder)
            remote = replace(loading.read(Path(sent), [], tmp_path), run=run)
            RunFolder(remote, Store(tmp_path / "store")).write_plan()
        shutil.rmtree(folder)
        # Plain values: pytest would write out whole graphs to explain a difference.
        name, fingerprints = remote.name, [step.fingerprint for step in remote.wanted]
        assert name == (plan.name if config != custom else "own")
        assert fingerprints == [step.fingerprint for step in plan.wanted]
        later = loading.read(run, [], tmp_path)
        assert fingerprints == [step.fingerprint for step in later.wanted]


@pytest.mark.parametrize("job", [True, False])
def test_what_a_config_builds_on_is_found_from_another_folder(
    beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: bool
) -> None:
    """As from that of the best trial, which outlives a job."""
    tree = tiny.dpr(beir, encoder)
    (tmp_path / "mine").mkdir()
    tiny.write(tmp_path / "mine" / "start.yaml", tree | {"k": 7})
    config, runs = tiny.write(tmp_path / "mine" / "on.yaml", tree | {"start_from": "start.yaml"}), tmp_path / "runs"
    runs.mkdir()
    fingerprints = [step.fingerprint for step in loading.read(config, [], runs).wanted]
    folder = tmp_path / "job"
    if job:
        folder.mkdir()
        config = folder / job_package.pack_experiment(config, folder)
        monkeypatch.setenv(CALLED_AS, "sparring")
        for module in (loading, program):
            monkeypatch.setattr(module, "ROOT", folder)
    whole = loading.keep_experiments(read_yaml(config), config, runs)
    best = tiny.write(runs / "best.yaml", whole)
    if job:
        shutil.rmtree(folder)
    assert [step.fingerprint for step in loading.read(best, [], runs).wanted] == fingerprints
    section = {"start_from": "configs/demo.yaml"}
    monkeypatch.undo()
    assert loading.keep_experiments(section, config, runs) == section


def test_a_file_that_only_an_assignment_names_is_not_sent(
    place: Place, beir: Path, encoder: Path, tmp_path: Path
) -> None:
    start = tiny.write(tmp_path / "start.yaml", tiny.dpr(beir, encoder) | {"k": 7})
    names = f"start_from={start}"
    with refused("--set", "file-not-sent"):
        job_package.pack(place.config, Cluster(), tmp_path / "job", [names])
    folds = {"recipe": "folds", "experiment": str(place.config), "sets": [names]}
    with refused("sets", "file-not-sent"):
        job_package.pack_experiment(tiny.write(tmp_path / "folds.yaml", folds), tmp_path / "job")
    variant = {"recipe": "compare", "experiments": {"one": {"file": str(place.config), "sets": [names]}}}
    with refused("experiments.one.sets", "file-not-sent"):
        job_package.pack_experiment(tiny.write(tmp_path / "both.yaml", variant), tmp_path / "job")
    with refused("--set", "file-not-sent"):
        job_package.pack(place.config, Cluster(), tmp_path / "job", ["start_from=runs/demo/config.yaml"])
    for number, good in enumerate(("start_from=configs/demo.yaml", "start_from='configs/demo.yaml'", "start_from=~")):
        job_package.pack(place.config, Cluster(), tmp_path / f"sent{number}", [good, "k=7"])


def test_an_experiment_of_the_repository_keeps_its_place(tmp_path: Path) -> None:
    assert job_package.pack_experiment(Path("configs/demo.yaml"), tmp_path) == "configs/demo.yaml"
    assert job_package.pack_experiment(ROOT / "configs" / "demo.yaml", tmp_path) == "configs/demo.yaml"


def test_text_stays_text(tmp_path: Path) -> None:
    tree = {"a": "1e-5", "b": 1e-5, "c": "null", "d": None, "e": "ünïcode\n", "f": [True, "yes", 0.1], "g": "007"}
    job_package.write(tmp_path / "x" / "y.yaml", tree)
    assert read_yaml(tmp_path / "x" / "y.yaml") == tree


def test_nothing_of_this_machines_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SPARRING_STORE"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    sent = job_package.environment()
    assert "swordfish" not in json.dumps(sent)
    assert sent.keys() == {*session.SETTINGS, "SPARRING_CODE", CALLED_AS}
    monkeypatch.setenv("SPARRING_DATA", "/shared/data")
    assert job_package.environment()["SPARRING_DATA"] == "/shared/data"


def test_the_guide_names_the_file_of_rays_settings() -> None:
    guide = (ROOT / "docs/pages/guides/cluster-security.md").read_text()
    (named,) = re.findall(r"`SETTINGS` in\s+`([^`]+)`", guide)
    assert (ROOT / named).samefile(session.__file__)


def test_data_that_only_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_DATA", "data")
    with pytest.raises(UserError, match=r"SPARRING_DATA: data is a place on this machine; accepted: an absolute path"):
        job_package.environment()


def test_a_job_names_the_command_that_sent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/.venv/bin/sparring", "submit"])
    monkeypatch.setenv(CALLED_AS, job_package.environment()[CALLED_AS])
    monkeypatch.setattr("sys.argv", ["/job/sparring/__main__.py", "run"])
    assert program.program() == "sparring"


def test_the_commit_that_was_sent_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is no checkout there."""
    version = code_version()
    monkeypatch.setenv("SPARRING_CODE", job_package.environment()["SPARRING_CODE"])
    monkeypatch.setattr("subprocess.run", None)
    assert code_version() == version


def test_a_profile_written_and_read_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    job_package.write(path, Cluster(address="auto").model_dump(mode="json"))
    assert yaml.safe_load(path.read_text())["address"] == "auto"
    assert clusters.read_cluster(path) == Cluster(address="auto")
