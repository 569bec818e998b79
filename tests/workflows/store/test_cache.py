"""The cache of a store on S3 is bounded: what was used least recently goes, and nothing that is in use."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.workflows.store import cache, s3, transfer
from tests.support import bucket
from tests.support.tiny import ROOT

SIZE = 1000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with bucket.serving() as url:
        yield url


@pytest.fixture
def artifacts(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Artifacts on S3 of two files of 1,000 bytes each, in a cache that is empty and has room for five files."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "elsewhere"))
    names = [f"{tmp_path.name}/encode-{number:012x}" for number in range(4)]
    for name in names:
        folder = s3.local_path(f"s3://{bucket.BUCKET}/{name}")
        folder.mkdir(parents=True)
        for file in ("a.npy", "b.npy"):
            (folder / file).write_text(file[0] * SIZE)
        transfer.sync(folder)
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARRING_CACHE_GB", str(5.5 * SIZE / 1e9))
    return [s3.local_path(f"s3://{bucket.BUCKET}/{name}") for name in names]


def present(artifacts: list[Path]) -> list[str]:
    """What the cache has, as `0a` for the file `a.npy` of the first artifact."""
    return [f"{number}{file.stem}" for number, folder in enumerate(artifacts) for file in sorted(folder.glob("*.npy"))]


def test_the_least_recently_used_files_go(artifacts: list[Path]) -> None:
    first, second, third, _ = artifacts
    for paths in ([first], [second], [first / "a.npy"], [third]):
        with cache.holding():
            transfer.download(*paths)
        time.sleep(0.01)
    kept = present(artifacts)
    assert {"0a", "2a", "2b"} < set(kept)  # the first's `a` was used after the second
    assert len(kept) == 4
    assert "0b" not in kept
    with cache.holding():
        transfer.download(first)
        assert (first / "b.npy").read_text() == "b" * SIZE


def test_nothing_that_a_block_uses_goes(artifacts: list[Path]) -> None:
    first, second, third, fourth = artifacts
    with cache.holding():
        transfer.download(first)
        with cache.holding():
            transfer.download(second / "a.npy")
            transfer.download(second / "b.npy")
            transfer.download(third)
            assert present(artifacts) == ["0a", "0b", "1a", "1b", "2a", "2b"]  # beyond the limit, as all is in use
        transfer.download(fourth)
        assert present(artifacts)[:2] == ["0a", "0b"]
        assert len(present(artifacts)) < 6


def test_what_a_worker_holds_stays_until_it_is_closed(artifacts: list[Path]) -> None:
    first, second, third, fourth = artifacts
    holds = cache.Holds()
    with cache.holding(holds):
        transfer.download(first)
    with cache.holding():
        transfer.download(second)
    with cache.holding():
        transfer.download(third)
    assert present(artifacts) == ["0a", "0b", "2a", "2b"]
    holds.close()
    with cache.holding():
        transfer.download(fourth)
    assert present(artifacts) == ["2a", "2b", "3a", "3b"] or present(artifacts) == ["2b", "3a", "3b"]


USING = """
import os, sys
from pathlib import Path
from sparring.workflows.store import cache, transfer
with cache.holding():
    transfer.download(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_what_another_process_uses_stays_until_that_process_dies(artifacts: list[Path]) -> None:
    first, second, third, fourth = artifacts
    command = [sys.executable, "-c", USING, str(first)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for folder in (second, third):
            with cache.holding():
                transfer.download(folder)
        assert present(artifacts) == ["0a", "0b", "2a", "2b"]
        process.kill()
        process.wait()
    with cache.holding():
        transfer.download(fourth)
    assert "0a" not in present(artifacts)


def test_what_is_not_on_s3_stays(artifacts: list[Path]) -> None:
    """Such as a file that was written or changed here."""
    first, *rest = artifacts
    with cache.holding():
        transfer.download(first)
    (first / "a.npy").write_text("changed")
    (first / "new.npy").write_text("new")
    for folder in rest:
        with cache.holding():
            transfer.download(folder)
    assert (first / "a.npy").read_text() == "changed"
    assert (first / "new.npy").read_text() == "new"
    assert not (first / "b.npy").exists()


def test_uploaded_files_are_in_use_until_their_block_ends(artifacts: list[Path]) -> None:
    """Otherwise a step's own files could go, and a later `sync` would delete them on S3."""
    first, second, third, _ = artifacts
    with cache.holding():
        transfer.download(first, second)
        (first / "c.npy").write_text("c" * SIZE)
        transfer.sync(first)
        transfer.download(third)
        assert (first / "c.npy").exists()
        transfer.sync(first, delete=True)
    assert "c.npy" in s3.listing(first)


def test_without_a_limit_the_cache_has_half_of_the_free_disk(
    artifacts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARRING_CACHE_GB")
    with cache.holding():
        transfer.download(*artifacts)
    assert len(present(artifacts)) == 8
    monkeypatch.setattr(cache, "_room", {})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 0}))
    for file in ("a.npy", "b.npy"):
        (artifacts[3] / file).unlink()
    with cache.holding():
        transfer.download(artifacts[3])
    assert len(present(artifacts)) < 6


@pytest.mark.parametrize("value", ["0", "-1", "much", "nan"])
def test_a_limit_that_is_no_size_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_CACHE_GB", value)
    with pytest.raises(UserError, match=f"SPARRING_CACHE_GB is '{value}'. Set it to a number of GB above 0"):
        cache.limit_bytes()
