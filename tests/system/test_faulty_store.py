"""A store on S3 behind a network that fails: whatever happens to requests, nothing is lost and nothing is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import s3fs
from botocore.exceptions import BotoCoreError, ClientError

from sparring.workflows.store import leases, s3, transfer
from tests.support import bucket, tiny
from tests.support.faults import FAULTS, Proxy
from tests.support.tiny import Place, Said

ATTEMPTS = 30


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The server, with a bucket."""
    with bucket.serving() as url:
        yield url


@pytest.fixture(scope="module")
def disk(toys: Path, beir: Path, encoder: Path) -> Place:
    """A finished run whose store is on this disk."""
    place = tiny.place(toys / "whole", tiny.dpr(beir, encoder))
    assert place("run") == 0
    return place


@pytest.fixture
def proxy(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[Proxy]:
    """Three of ten requests meet a fault."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(leases, "EXPIRE_SECONDS", 2.0)
    with Proxy(server, seed=seed, share=0.3).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 30))])
def test_what_is_uploaded_is_what_is_downloaded(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Versions of an artifact, each uploaded by the holder of its lease and downloaded to another cache. What fails is
    done again."""
    where = f"s3://{bucket.BUCKET}/plain-{seed}/step-0123456789ab"
    for version in range(6):
        local = s3.local_path(where)
        for name in (f"rows-{version}.npy", "model/a.json", "model/b.json"):
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            (local / name).write_text(f"{version} {name}" * (version + 1))

        def put(here: Path = local) -> None:
            with leases.hold_lease(here, lambda _: None) as lease:
                transfer.sync(here)
                transfer.upload(here / f"rows-{version}.npy")  # noqa: B023
                lease.check()

        again(put)
        proxy.settle()
        monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "other"))
        folder = s3.local_path(where)
        again(lambda folder=folder: transfer.download(folder, exact=True))
        assert contents(folder) == contents(local)
        monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    assert len(proxy.met) > 4


def again(function: Callable[[], None]) -> None:
    """Call a function until it does not fail."""
    for _ in range(ATTEMPTS):
        with suppress(OSError, RuntimeError, BotoCoreError, ClientError):
            return function()
    pytest.fail(f"{ATTEMPTS} attempts")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of an artifact by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith(".")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_run_whose_requests_meet_faults_loses_nothing(
    proxy: Proxy, disk: Place, tmp_path: Path, said: Said, seed: int
) -> None:
    """The command is repeated until it is done, every other time with an empty cache, as on another machine."""
    place, err = bucket.remote(tmp_path / tmp_path.name, disk), ""
    for attempt in range(ATTEMPTS):
        if place("run") == 0:
            break
        err = said()[1]
        assert "Traceback" not in err
        if attempt % 2:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    else:
        pytest.fail(f"{ATTEMPTS} attempts: {err}")
    proxy.settle()
    proxy.share = 0.0
    print(f"seed {seed}: {attempt + 1} attempts; {dict(proxy.met)}")
    assert set(proxy.met) == set(FAULTS)
    bucket.assert_same(place, disk, late=True)
    shutil.rmtree(tmp_path / "cache")
    said()
    assert place("run") == 0  # on another machine, from what is in the store
    assert "nothing to run" in "".join(said())
    bucket.assert_same(place, disk, late=True)
    if place("verify"):  # a file that came after its deletion stays
        assert all(line.endswith(" was not there") for line in said()[0].splitlines())
