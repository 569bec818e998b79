"""A store on an object store: every node has a copy of what it works with, and sends what it makes.

A place in a copy says by itself what it is the copy of: `<cache>/s3:/bucket/prefix/encode-0123456789ab/queries.npy`. So
all other code has to do with local files alone, and what is below does nothing where a place is no copy.

On the object store a file is there whole or not at all, and a directory is there when `.whole` is, which is sent last.
Writing where nothing may be yet, or where nobody may have written meanwhile, is the server's own conditional PUT.
"""

import fcntl
import fnmatch
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from components.clock import at
from components.config import UserError
from components.files import replacing
from workflows import progress

SCHEME = "s3:"
WHOLE, LEASES = ".whole", ".leases"
OWN = {"artifact.json", "failure.txt", "lock", progress.NAME, "ray"}
"""Of an artifact, what no copy of it is for."""
AT_ONCE = 8
"""Files on their way at once."""
BEAT, STALE = 10.0, 60.0
"""Seconds between two signs of life of a driver, and after which without one it counts as dead."""
ACCEPTED = "accepted: a directory, or s3://BUCKET/PREFIX"

Listing = dict[str, Any]
"""What is on the object store below a place, by name: size and time."""


# Places


def place(where: str | Path) -> Path:
    """The local directory of a store (or file): itself, or where this node's copy of it lies. Asks nobody."""
    cache = Path(os.environ.get("SPARRING_CACHE") or Path.home() / ".cache" / "sparring").absolute()
    if isinstance(where, str) and "://" in where:
        url = urlsplit(where)
        if "@" in url.netloc or url.query or url.fragment:
            raise UserError(f"--store: has more in it than a bucket and a prefix, and would end in logs; {ACCEPTED}")
        if url.scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]+", url.netloc):
            raise UserError(f"--store {where}: {ACCEPTED}")
        return cache.joinpath(SCHEME, url.netloc, *(part for part in url.path.split("/") if part))
    path = Path(where).absolute()
    key = remote(path)
    return path if key is None else cache.joinpath(SCHEME, key)


def remote(path: Path) -> str | None:
    """`bucket/prefix/...` of which a place is a copy; None where it is none."""
    parts = path.parts
    return "/".join(parts[parts.index(SCHEME) + 1 :]) if SCHEME in parts else None


def opened(where: str | Path) -> Path:
    """`place`, if it is there to be used; UserError says why it is not."""
    path = place(where)
    key = remote(path)
    if key is not None:
        name = f"--store s3://{key}"
        try:
            _s3().call_s3("head_bucket", Bucket=key.partition("/")[0])
        except ImportError:
            raise UserError(
                f"{name}: s3fs is not installed; first, on every node: pip install -c cluster/development.lock s3fs"
            ) from None
        except FileNotFoundError:
            raise UserError(f"{name}: there is no bucket {key.partition('/')[0]}") from None
        except PermissionError:
            raise UserError(f"{name}: the credentials that are there may not use this bucket") from None
        except Exception as error:  # botocore's, of many kinds
            raise UserError(f"{name}: {_line(error)}; credentials and endpoint are AWS_... variables") from None
    return path


def storage(path: Path) -> dict[str, Any]:
    """A place that all nodes see, as Ray Train's RunConfig takes it."""
    key = remote(path)
    if key is None:
        return {"storage_path": str(path)}
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return {"storage_path": key, "storage_filesystem": PyFileSystem(FSSpecHandler(_s3()))}


# Files


def listing(folder: Path) -> Listing:
    """What of a directory is on the object store, whole or not."""
    key = _key(folder)
    return {name.removeprefix(f"{key}/"): about for name, about in _s3().find(key, detail=True).items()}


def here(value: Any) -> Any:
    """A value with every place of a store in it (as text too) as it is on this node, where what it names is brought."""
    if isinstance(value, Mapping):
        return {key: here(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [here(item) for item in value]
    if isinstance(value, (str, Path)) and f"/{SCHEME}/" in str(value):
        path = place(Path(value))
        bring(path)
        return type(value)(path)
    return value


def bring(*paths: Path, exactly: bool = False) -> None:
    """Have files or directories of artifacts here as they are on the object store.

    Once it has returned a directory is here whole, or not at all if it is not whole there. `exactly` removes what else
    of the artifacts is here and not there. What several processes of a node ask for is brought once.
    """
    for artifact in dict.fromkeys(_artifact(path) for path in paths if remote(path) is not None):
        artifact.mkdir(parents=True, exist_ok=True)
        with at("files"), (artifact / ".bringing").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            there = listing(artifact)
            whole = {name.removesuffix(f"/{WHOLE}") for name in there if name.endswith(f"/{WHOLE}")}
            good = {
                name: about for name, about in there.items()
                if _travels(name) and ("/" not in name or any(str(part) in whole for part in Path(name).parents))
            }  # fmt: skip
            wanted = [name for name in good if any((artifact / name).is_relative_to(path) for path in paths)]
            _together(partial(_get, artifact, good), wanted)
            for name in _names(artifact, artifact) - good.keys() if exactly else ():
                (artifact / name).unlink(missing_ok=True)
                with suppress(OSError):  # other files are still in it
                    (artifact / name).parent.rmdir()


def send(path: Path, there: Listing | None = None) -> None:
    """Bring a file, or a directory as one thing, to the object store: what is other there, or not there yet."""
    if remote(path) is None:
        return
    with at("files"):
        artifact = _artifact(path)
        there = listing(artifact) if there is None and path.is_dir() else there or {}
        mark = f"{path.relative_to(artifact)}/{WHOLE}"
        names = _names(artifact, path)
        other = [name for name in names if name not in there or not _same(artifact / name, there[name])]
        if mark in there and other:
            _s3().rm_file(_key(artifact / mark))
        _together(lambda name: _put(artifact / name), other)
        if path.is_dir() and names and (other or mark not in there):
            _s3().pipe_file(_key(artifact / mark), b"")


def sync(folder: Path, *, delete: bool = False) -> None:
    """Send all that lies in a directory, each of its own directories as one thing; `delete` what is gone here."""
    if remote(folder) is None or not folder.is_dir():
        return
    with at("files"):
        artifact = _artifact(folder)
        there = listing(artifact)
        for child in sorted(folder.iterdir()):
            if _travels(child.name):
                send(child, there)
        gone = [
            name for name in there
            if delete and (artifact / name).is_relative_to(folder) and Path(name).parts[0] not in OWN
            and not (artifact / name.removesuffix(f"/{WHOLE}")).exists()
        ]  # fmt: skip
        _together(lambda name: _s3().rm_file(_key(artifact / name)), gone)


def remove(artifact: Path, names: list[str]) -> None:
    """Remove files of an artifact from the object store."""
    _together(lambda name: _s3().rm_file(_key(artifact / name)), names)


def _names(artifact: Path, path: Path) -> set[str]:
    """The files that are here at a place, by their names in the artifact."""
    files = [path] if path.is_file() else path.rglob("*")
    names = (str(file.relative_to(artifact)) for file in files if file.is_file())
    return {name for name in names if _travels(name)}


def _travels(name: str) -> bool:
    """Whether a file is part of the artifact, and neither half-written nor about the writing."""
    parts = Path(name).parts
    return parts[0] not in OWN and not any(part.startswith(".") for part in parts)


def _same(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a file is here as it is there: of its size, and not older. What was sent or brought has the time that it
    has there."""
    try:
        here = path.stat()
    except FileNotFoundError:
        return False
    return here.st_size == about["size"] and here.st_mtime >= about["LastModified"].timestamp()


def _get(artifact: Path, there: Listing, name: str) -> None:
    path, about = artifact / name, there[name]
    if _same(path, about):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        _s3().get_file(_key(path), str(temporary))
        _dated(temporary, about)


def _put(path: Path) -> None:
    _s3().put_file(str(path), _key(path))
    _dated(path, _s3().info(_key(path)))


def _dated(path: Path, about: Mapping[str, Any]) -> None:
    seconds = about["LastModified"].timestamp()
    os.utime(path, (seconds, seconds))


def _artifact(path: Path) -> Path:
    """The artifact that a place belongs to."""
    for folder in (path, *path.parents):
        if re.fullmatch(r"\w+-[0-9a-f]{12}", folder.name):
            return folder
    raise ValueError(f"{path}: belongs to no artifact")


def _key(path: Path) -> str:
    key = remote(path)
    assert key is not None, path
    return key


def _together(function: Callable[[str], Any], names: Any) -> None:
    """Call a function for all names, some at once; the first error is raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(function, names))


def _s3() -> Any:
    """The file system; fsspec has one for a process. What others wrote meanwhile is seen, so no listing is kept."""
    import s3fs  # only where a store is there

    return s3fs.S3FileSystem(use_listings_cache=False)


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# Records


def documents(paths: list[Path]) -> dict[Path, Any]:
    """The JSON at some places, of those that are there; asked for together."""
    found = _s3().cat([_key(path) for path in paths], on_error="return") if paths else {}
    for said in found.values():
        if isinstance(said, BaseException) and not isinstance(said, FileNotFoundError):
            raise said
    return {path: json.loads(said) for path in paths if isinstance(said := found[_key(path)], bytes)}


def names(folder: Path) -> set[str]:
    """What lies in a directory of the object store."""
    try:
        return {one.rpartition("/")[2] for one in _s3().ls(_key(folder), detail=False)}
    except FileNotFoundError:
        return set()


def write(path: Path, value: Any, **condition: str) -> str | None:
    """Write JSON by one PUT, on a condition; what the server calls it, or None where the condition does not hold."""
    bucket, _, key = _key(path).partition("/")
    body = json.dumps(value, indent=1, allow_nan=False).encode()
    try:
        return str(_s3().call_s3("put_object", Bucket=bucket, Key=key, Body=body, **condition)["ETag"])
    except OSError as error:
        if not condition or not (isinstance(error, FileNotFoundError) or _refused(error)):
            raise
    found = _read(path)  # a PUT whose answer was lost is tried again, and meets itself
    return found[0] if found is not None and found[1] == json.loads(body) else None


def _refused(error: BaseException) -> bool:
    """Whether the server says that the condition does not hold."""
    response = getattr(error.__cause__, "response", {})
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict")


def _read(path: Path) -> tuple[str, Any] | None:
    """The JSON at a place, and what the server calls it."""
    bucket, _, key = _key(path).partition("/")
    try:
        etag = str(_s3().info(f"{bucket}/{key}")["ETag"])
        return etag, json.loads(_s3().cat_file(f"{bucket}/{key}"))
    except FileNotFoundError:
        return None


def matching(there: Mapping[str, Any], patterns: list[str]) -> dict[str, int]:
    """Sizes of the files of a listing that some patterns take, as a whole or by the directory that they lie in."""
    return {
        name: about["size"] for name, about in there.items()
        if any(fnmatch.fnmatch(Path(name).parts[0], pattern) for pattern in patterns)
    }  # fmt: skip


# Who is at it


def leases(root: Path) -> dict[str, Any]:
    """What the drivers that are at work in a store say of themselves, by artifact."""
    folder = root / LEASES
    there = [folder / name for name in names(folder)]
    return {path.name: said for path, said in documents(there).items() if time.time() - said["time"] < STALE}


class Lease:
    """That a driver alone fills an artifact, as an object that it makes where none is, and keeps up to date.

    A driver without a sign of life for `STALE` seconds of the waiting one's clock is taken for dead, as is one that had
    this very copy: a lock of this machine says that nobody has it any more.
    """

    def __init__(self, out: Path, etag: str) -> None:
        self._out, self._etag, self._lost = out, etag, ""
        self._turn, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beats, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """RuntimeError where another driver has taken it over."""
        self._beat()
        if self._lost:
            raise RuntimeError(f"another driver has taken over meanwhile, as this one was not heard of: {self._lost}")

    def end(self) -> None:
        """Give it back."""
        self._stop.set()
        self._thread.join()
        bucket, _, key = _key(lease_of(self._out)).partition("/")
        if not self._lost:
            with suppress(Exception):  # it runs out by itself
                _s3().call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=self._etag)

    def _beats(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(BEAT) and not self._lost:
            try:
                self._beat()
                last = time.monotonic()
            except Exception as error:  # of the network; it may come back
                if time.monotonic() - last > STALE:
                    self._lost = _line(error)

    def _beat(self) -> None:
        with self._turn:
            etag = write(lease_of(self._out), _sign(self._out), IfMatch=self._etag) if not self._lost else None
            self._etag, self._lost = etag or "", self._lost or ("" if etag else "its lease is another's")


@contextmanager
def leased(out: Path, on_wait: Callable[[str], None]) -> Iterator[Lease]:
    """Hold an artifact for this driver alone, on whatever machine others are; waits while another is at it.

    UserError where the object store cannot write on a condition, so that a second driver could not be held back.
    """
    path, first = lease_of(out), _sign(out)
    seen, since = "", time.monotonic()
    etag = write(path, first, IfNoneMatch="*")
    if etag is not None and write(path, _sign(out), IfNoneMatch="*") is not None:
        raise UserError(f"--store s3://{_key(out.parent)}: writes where it should not (If-None-Match); use another one")
    while etag is None:
        found = _read(path)
        if found is None:
            etag = write(path, _sign(out), IfNoneMatch="*")
            continue
        if found[0] != seen:
            if not seen and found[1]["copy"] != first["copy"]:
                on_wait(found[1]["holder"])
            seen, since = found[0], time.monotonic()
        if found[1]["copy"] == first["copy"] or time.monotonic() - since > STALE:
            etag = write(path, _sign(out), IfMatch=seen)
        else:
            time.sleep(BEAT / 10)
    lease = Lease(out, etag)
    try:
        yield lease
    finally:
        lease.end()


def lease_of(out: Path) -> Path:
    """Where the object lies that says who fills an artifact."""
    return out.parent / LEASES / out.name


def _sign(out: Path) -> dict[str, Any]:
    """A sign of life: who, where, and how far it is. No two are alike."""
    return {
        "holder": f"process {os.getpid()} on {socket.gethostname()}", "copy": _copy(out.parent),
        "time": time.time(), "sign": uuid.uuid4().hex, "progress": progress.read(out),
    }  # fmt: skip


def _copy(root: Path) -> str:
    """What tells this copy of a store from all others."""
    path = root / ".copy"
    if not path.exists():
        with suppress(FileExistsError), replacing(path) as temporary:
            temporary.write_text(uuid.uuid4().hex)
    return path.read_text()
