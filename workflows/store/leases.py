"""Locks of artifacts on S3: a lease is an object that one driver creates, and renews as long as it works.

Creating it where there is none, and renewing it where no other driver has written, are conditional PUTs.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.files import replacing
from sparring.workflows.store import s3
from sparring.workflows.store.progress import read_progress
from sparring.workflows.store.store import driver_name

LEASES = ".leases"
RENEW_SECONDS, EXPIRE_SECONDS = 10.0, 60.0
"""Seconds between two renewals of a lease, and seconds without renewal after which a lease has expired."""


def read_leases(root: Path) -> dict[str, Any]:
    """Return the contents of unexpired leases in a store, by artifact name. S3's clock decides, since those of two
    machines differ."""
    folder = root / LEASES
    ages = s3.ages(folder)
    contents = s3.read_json([folder / name for name, age in ages.items() if age < EXPIRE_SECONDS])
    return {path.name: lease for path, lease in contents.items()}


def lease_path(out: Path) -> Path:
    """Return the place of an artifact's lease."""
    return out.parent / LEASES / out.name


class Lease:
    """The right to write an artifact, renewed in a thread until it is released."""

    def __init__(self, out: Path, etag: str) -> None:
        self._out, self._etag, self._lost = out, etag, ""
        self._renewing, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise RuntimeError if the lease is lost."""
        self._renew()
        if self._lost:
            raise RuntimeError(f"the lease of this step is lost: {self._lost}")

    def release(self) -> None:
        """Stop renewing the lease and delete it."""
        self._stop.set()
        self._thread.join()
        if not self._lost:
            with suppress(Exception):  # it expires
                s3.delete_if(lease_path(self._out), self._etag)

    def _renew_until_stopped(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(RENEW_SECONDS) and not self._lost:
            try:
                self._renew()
                renewed = time.monotonic()
            except Exception as error:  # an error of the network; the next attempt may succeed
                if time.monotonic() - renewed > EXPIRE_SECONDS:
                    self._lost = f"it could not be renewed in {EXPIRE_SECONDS:.0f} s: {s3.first_line(error)}"

    def _renew(self) -> None:
        with self._renewing:
            if self._lost:
                return
            etag = s3.put_json(lease_path(self._out), _contents(self._out), IfMatch=self._etag)
            self._etag, self._lost = etag or "", "" if etag else "another driver has taken over"


@contextmanager
def hold_lease(out: Path, on_wait: Callable[[str], None]) -> Iterator[Lease]:
    """Hold the lease of an artifact. While another driver holds it, tell `on_wait` its name and wait.

    A driver takes over a lease that its holder has not renewed for `EXPIRE_SECONDS`, by the waiting driver's clock. It
    takes over a lease of its own cache at once: it has locked the artifact on this machine, so that holder is dead.

    UserError if the object store ignores conditions, because then no lease keeps a second driver out.
    """
    path, contents = lease_path(out), _contents(out)
    seen_version, since = "", time.monotonic()
    etag = s3.put_json(path, contents, IfNoneMatch="*")
    if etag is not None and s3.put_json(path, _contents(out), IfNoneMatch="*") is not None:
        raise UserError(
            f"--store {s3.url(out.parent)}: this object store ignores the condition If-None-Match; "
            "accepted: one with conditional writes"
        )
    while etag is None:
        version = s3.read_version(path)
        if version is None:
            etag = s3.put_json(path, _contents(out), IfNoneMatch="*")
            continue
        current, lease = version
        if current != seen_version:
            if not seen_version and lease["cache"] != contents["cache"]:
                on_wait(lease["holder"])
            seen_version, since = current, time.monotonic()
        if lease["cache"] == contents["cache"] or time.monotonic() - since > EXPIRE_SECONDS:
            etag = s3.put_json(path, _contents(out), IfMatch=seen_version)
        else:
            time.sleep(RENEW_SECONDS / 10)
    lease_held = Lease(out, etag)
    try:
        yield lease_held
    finally:
        lease_held.release()


def _contents(out: Path) -> dict[str, Any]:
    """Return what a driver writes into a lease. The nonce makes each version differ from the one before."""
    return {
        "holder": driver_name(),
        "cache": _cache_id(out.parent),
        "nonce": uuid.uuid4().hex,
        "progress": read_progress(out),
    }


def _cache_id(root: Path) -> str:
    """Identify this cache of a store."""
    path = root / ".cache-id"
    if not path.exists():
        with suppress(FileExistsError), replacing(path) as temporary:
            temporary.write_text(uuid.uuid4().hex)
    return path.read_text()
