"""An S3 server on this machine, and experiments with a store on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparring.workflows.store.comparison import LUCENE
from sparring.workflows.store.store import DIGESTS, ETAGS
from sparring.workflows.store.transfer import UPLOADED
from tests.support import tiny
from tests.support.tiny import Place

BUCKET = "bucket"
SECRET = "a-secret-that-nobody-may-see"
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def server() -> Iterator[str]:
    """Run a server in a process of its own until the block ends; its URL."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


@contextmanager
def serving() -> Iterator[str]:
    """A server with a bucket, which this process's environment names until the block ends; its URL."""
    with server() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(url).items():
            patch.setenv(name, value)
        files().clear_instance_cache()  # another test's server may be in it
        files().mkdir(BUCKET)
        yield url


def environment(url: str) -> dict[str, str]:
    """The environment variables with the server's address and the credentials."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def files() -> Any:
    """The server's file system."""
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False)


@dataclass(frozen=True)
class Remote(Place):
    """A place whose store is a prefix of the bucket; `store` downloads all of it."""

    @property
    def where(self) -> str:
        return f"s3://{BUCKET}/{self.folder.name}"

    @property
    def store(self) -> Path:
        """A folder with a copy of the store as it is now, without the markers of complete directories."""
        to = self.folder / "fetched" / str(len(list(self.folder.glob("fetched/*"))))
        to.mkdir(parents=True)
        for key in files().find(f"{BUCKET}/{self.folder.name}"):
            name = key.partition("/")[2].partition("/")[2]
            if UPLOADED not in name:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                (to / name).write_bytes(files().cat_file(key))
        return to

    def names(self) -> set[str]:
        """The names of all objects in the store."""
        keys = files().find(f"{BUCKET}/{self.folder.name}")
        return {key.partition("/")[2].partition("/")[2] for key in keys}

    def dates(self, names: set[str]) -> dict[str, Any]:
        """When each of the objects was written."""
        return {name: files().info(f"{BUCKET}/{self.folder.name}/{name}")["LastModified"] for name in names}


def remote(folder: Path, like: Place, **profile: Any) -> Remote:
    """A place with the same experiment as another, and a store on S3."""
    return Remote(tiny.place(folder, yaml.safe_load(like.config.read_text()), **profile).folder)


def assert_same(place: Place, reference: Place, *, late: bool = False) -> None:
    """The same artifacts with the same files, and the same rankings, weights, groups and measures, byte for byte.

    Where requests come `late`, one of them may bring back a file that has been deleted, which nobody reads then.
    """
    store = place.store
    assert tiny.results(store) == tiny.results(reference.store)
    assert place.metrics()["rows"] == reference.metrics()["rows"]
    files, reference_files = (
        {name for name in tiny.contents(folder) if not own(name)} for folder in (store, reference.store)
    )
    assert not reference_files - files, reference_files - files  # rewritten assertions are those of test files alone
    assert late or not files - reference_files, files - reference_files


def own(name: str) -> bool:
    """Whether a store may have a file that another has not: a driver's own, versions of files, and Lucene's segments,
    whose number follows the threads that came to write."""
    segment = name.startswith(LUCENE) and "/index/_" in name
    return segment or name.endswith(("/lock", f"/{DIGESTS}", f"/{ETAGS}")) or "/ray/" in name
