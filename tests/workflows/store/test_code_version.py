"""What a record says of the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparring.workflows.store import code_version as module
from sparring.workflows.store.code_version import code_version


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the code lies; no checkout yet."""
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.delenv("SPARRING_CODE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_and_whether_its_files_are_as_they_were(folder: Path) -> None:
    assert code_version() == {}
    git(folder, "init", "--quiet")
    (folder / "code.py").write_text("x = 1")
    git(folder, "add", "code.py")
    assert code_version() == {}  # nothing is committed
    git(folder, "commit", "--quiet", "-m", "code")
    commit = git(folder, "rev-parse", "HEAD")
    (folder / "notes.txt").touch()  # no file of the commit
    assert code_version() == {"commit": commit, "changed": False}
    (folder / "code.py").write_text("x = 2")
    assert code_version() == {"commit": commit, "changed": True}
    git(folder, "checkout", "--quiet", "--detach")
    assert code_version() == {"commit": commit, "changed": True}


def test_without_git_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(folder, "init", "--quiet")
    monkeypatch.setenv("PATH", "")
    assert code_version() == {}
