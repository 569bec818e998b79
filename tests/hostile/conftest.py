"""What tests of damaged input share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.formats import collection


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with nothing in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str, Path], Any]:
    """A copy of a collection, and its declaration."""
    written: dict[str, Any] = {}

    def copied(name: str, to: Path) -> Any:
        whole = tmp_path / "whole" / name
        if name not in written:
            written[name] = collection(name, whole)
        shutil.copytree(whole, to)
        return json.loads(json.dumps(written[name]).replace(str(whole), str(to)))

    return copied
