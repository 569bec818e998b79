"""Digests of files, taken once."""

import json
from pathlib import Path

import pytest

from sparring.components.digests import sha256
from tests.support.sources import write


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.txt", "one")
    first = sha256(path)
    cached = tmp_path / "cache" / "digests.json"
    assert list(json.loads(cached.read_text()).values()) == [first]
    cached.write_text(cached.read_text().replace(first, "remembered"))
    assert sha256(path) == "remembered"
    write(path, "another")
    assert sha256(path) not in (first, "remembered")
    cached.write_text("{broken")
    assert len(sha256(path)) == 64
    monkeypatch.setenv("SPARRING_CACHE", str(path / "not a folder"))
    assert len(sha256(path)) == 64
