"""The command `sparring`, which set-up installs: it works from any folder, where everything of the user's lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.program import located
from tests.support import tiny
from tests.support.tiny import ROOT

OWN_LOSS = '''"""A loss of the user's."""

from sparring.components.losses.listwise import cross_entropy


def own(scores, *, temperature: float = 1.0):
    """Cross entropy by another name."""
    return cross_entropy(scores, temperature=temperature)
'''


class Folder:
    """A user's folder, in which the command is called."""

    def __init__(self, place: Path) -> None:
        self.path = place / "my folder"
        self.path.mkdir(parents=True)
        self._command = Path(sys.executable).with_name("sparring")

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self._command, *words], cwd=self.path, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def own(folder: Folder, beir: Path, encoder: Path) -> dict[str, Any]:
    """A config and a loss in the folder."""
    tree = {**tiny.dpr(beir, encoder), "k": 10}
    tree["train"] = {**tiny.training("own_loss.own", over="batch", updates=2), "log_every": 1}
    tiny.write(folder.path / "mine.yaml", tree)
    tiny.write(folder.path / "inline.yaml", tiny.INLINE)
    (folder.path / "own_loss.py").write_text(OWN_LOSS)
    return tree


def test_alone_it_teaches(folder: Folder) -> None:
    done = folder()
    assert (done.returncode, done.stderr) == (0, "")
    assert "sparring run configs/demo.yaml" in done.stdout
    assert "usage: sparring [-h]" in done.stdout
    assert not list(folder.path.iterdir())


def test_configs_of_the_repository_are_found_from_anywhere(folder: Folder) -> None:
    """Also those that another builds on; a file of the user's with that name comes first."""
    done = folder("plan", "configs/samtone/sizes.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    message = "error: train on my texts: there is no such file; "
    message += "accepted: a config (`sparring init FOLDER` writes one), or the folder of a run\n"
    assert folder("plan", "train on my texts").stderr == message
    for meant, right in {"demo": "demo", "configs/dem.yaml": "demo", "samtone-sizes": "samtone/sizes"}.items():
        message = f"error: {meant}: there is no such file; did you mean configs/{right}.yaml?\n"
        assert folder("plan", meant).stderr == message
    assert located(Path("configs/demo.yaml")).resolve() == ROOT / "configs/demo.yaml"
    (folder.path / "configs").mkdir()
    (folder.path / "configs/demo.yaml").write_text("recipe: mine\n")
    assert "recipe: 'mine'" in folder("plan", "configs/demo.yaml").stderr


def test_profiles_of_the_repository_are_found_from_anywhere(folder: Folder) -> None:
    done = folder("plan", "configs/dpr/cranfield.yaml", "--cluster", "cluster/inline.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "cluster/inline.yaml: this machine has what it asks for"
    assert folder("plan", "configs/demo.yaml", "--cluster", "x.yaml").stderr == "error: x.yaml: there is no such file\n"


@pytest.mark.usefixtures("own")
def test_what_starts_processes_works_there(folder: Folder) -> None:
    """An estimate tries models, and `doctor` Java, in processes of their own."""
    done = folder("plan", "mine.yaml", "--estimate", "--cluster", "inline.yaml")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "in all" in done.stdout
    assert "  ok   java: Java 21" in folder("doctor").stdout


@pytest.mark.usefixtures("own")
def test_a_run_lies_where_the_user_is(folder: Folder) -> None:
    """With its own loss; messages name the command, and other commands find the run."""
    done = folder("run", "mine.yaml", "--cluster", "inline.yaml")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert 'try:    sparring search mine.yaml "your question"' in done.stdout
    assert {path.name for path in folder.path.iterdir()} >= {"store", "runs", "mine.yaml"}
    assert (folder.path / "runs/mine/report.html").exists()
    shown = folder("show", "mine.yaml")
    assert shown.returncode == 0
    assert "retriever" in shown.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_every_command_works_there(folder: Folder, own: dict[str, Any]) -> None:
    """On the run, on what was exported, and with trials; a folder is recognised, and nothing else is left behind."""
    tuned = {
        "base": "mine.yaml",
        "tune": {"measure": "RR@10", "split": "dev", "trials": 1, "space": {"train.learning_rate": {"choice": [1e-3]}}},
    }
    tiny.write(folder.path / "tuned.yaml", tuned)
    assert folder("run", "mine.yaml", "--cluster", "inline.yaml").returncode == 0
    for words, says in {
        ("report", "mine.yaml"): "runs/mine/report.html\n",
        ("export", "mine.yaml", "my out"): 'sparring search my out/system "QUERY"',
        ("search", "my out/system", "bara", "--cluster", "inline.yaml"): "1. ",
        ("evaluate", "my out/rankings/BM25.trec", "my out/qrels.trec"): "RR@10\t",
        ("clean", "mine.yaml", "--dry-run"): "",
        ("init", own["data"]["path"], "-o", "found.yaml"): "wrote found.yaml",
        ("tune", "tuned.yaml", "--cluster", "inline.yaml"): "sparring search runs/tuned/tuned-best.yaml",
    }.items():
        done = folder(*words)
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), (words, done.stderr)
        assert says in done.stdout, (words, done.stdout)
    names = {"store", "runs", "my out", "mine.yaml", "found.yaml", "tuned.yaml", "inline.yaml", "own_loss.py"}
    assert {path.name for path in folder.path.iterdir()} - {"__pycache__"} == names


@pytest.mark.usefixtures("own")
def test_a_job_is_refused_before_anything_is_sent(folder: Folder) -> None:
    before = sorted(folder.path.iterdir())
    words = ["submit", "mine.yaml", "--address", "http://127.0.0.1:9"]
    done = folder("--store", "store", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --store store: is a place on this machine, and the job runs on the cluster; ")
    done = folder("--store", "/shared/store", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --address http://127.0.0.1:9: ")
    assert sorted(folder.path.iterdir()) == before


def test_a_link_to_the_command_is_the_command(folder: Folder) -> None:
    link = folder.path / "a link"
    link.symlink_to(Path(sys.executable).with_name("sparring"))
    done = subprocess.run([link, "completion", "bash"], cwd=folder.path, capture_output=True, text=True, check=True)
    assert "-F _shtab_sparring sparring" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_rays_workers_find_the_checkout_and_the_users_modules(folder: Folder) -> None:
    done = folder("run", "mine.yaml")
    assert done.returncode == 0, done.stderr


NAMES = (
    "random",
    "tokenize",
    "queue",
    "json",
    "logging",
    "tempfile",
    "string",
    "types",
    "copy",
    "select",
    "secrets",
    "uuid",
    "torch",
    "numpy",
    "ray",
    "yaml",
    "transformers",
    "pydantic",
    "pyarrow",
    "components",
    "workflows",
    "sitecustomize",
)
"""Modules of Python's own library, of ours, and of what we depend on."""


@pytest.mark.usefixtures("own")
def test_files_where_it_is_called_are_never_run(folder: Folder, beir: Path) -> None:
    """Neither here nor in the processes of Ray, Java or an estimate. A module that the config names is found there."""
    seen = folder.path / "seen"
    for name in NAMES:
        (folder.path / f"{name}.py").write_text(f"open({str(seen)!r}, 'a').write('{name} ')\n")
    tiny.write(folder.path / "ray.yaml", {**tiny.INLINE, "mode": "ray"})
    for words in (
        ["init", str(beir), "-o", "found.yaml"],
        ["plan", "mine.yaml", "--estimate", "--cluster", "inline.yaml"],
        ["run", "mine.yaml", "--cluster", "ray.yaml"],
        ["search", "mine.yaml", "barami", "--system", "BM25"],
        ["doctor"],
    ):
        done = folder(*words)
        assert not seen.exists(), (words, seen.read_text())
        assert done.returncode == 0, done.stderr
