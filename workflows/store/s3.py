"""Objects of a store on S3, and their paths in a node's cache of it.

A path in the cache names the object that it belongs to:
`<cache>/s3:/bucket/prefix/search-0123456789ab/ranking.parquet`. All other code works with such paths, as with those of
a store in a directory.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from email.utils import parsedate_to_datetime
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparring.components.config import UserError
from sparring.components.files import parsed
from sparring.workflows.store.dag import StepFailed

SCHEME = "s3:"
MAX_REQUESTS = 8
"""Maximum number of concurrent requests for files."""
ACCEPTED = "accepted: a directory, or s3://BUCKET/PREFIX"
BUCKET, CALLED = r"[a-z0-9][a-z0-9.-]{2,62}", "3 to 63 of a to z, 0 to 9, dots and dashes"

OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors of this machine's disk."""

T = TypeVar("T")
R = TypeVar("R")

Listing = dict[str, Any]
"""Properties of the objects below a folder, by name: size, time of the last change."""


# Paths


def cache_root() -> Path:
    """Return the directory of this node's cache of S3."""
    return Path(os.environ.get("SPARRING_CACHE") or Path.home() / ".cache" / "sparring").absolute() / SCHEME


def local_path(location: str | Path) -> Path:
    """Return the local path of a store or of a file in it: the path itself, or its place in this node's cache.

    No request is sent.
    """
    if isinstance(location, str) and "://" in location:
        parts = urlsplit(location)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UserError(
                f"--store: it has more than a bucket and a prefix, which would be written to logs; {ACCEPTED}"
            )
        if parts.scheme != "s3" or not re.fullmatch(BUCKET, parts.netloc):
            advice = f"; a bucket is {CALLED}" if parts.scheme == "s3" else ""
            raise UserError(f"--store {location}: {ACCEPTED}{advice}")
        prefix = [part for part in parts.path.split("/") if part]
        if ".." in prefix:
            raise UserError(f"--store {location}: a prefix without `..`; {ACCEPTED}")
        return cache_root().joinpath(parts.netloc, *prefix)
    path = Path(location).absolute()
    return cache_root() / object_path(path) if is_cached(path) else path


def is_cached(path: Path) -> bool:
    """Check whether a path lies in a cache of S3, on this node or another."""
    return SCHEME in path.parts


def object_path(path: Path) -> str:
    """Return `bucket/prefix/...` for a path in a cache."""
    parts = path.parts
    return "/".join(parts[parts.index(SCHEME) + 1 :])


def url(path: Path) -> str:
    """Return `s3://bucket/prefix/...` for a path in a cache."""
    return f"s3://{object_path(path)}"


def _bucket_and_key(path: Path) -> dict[str, str]:
    """Return an object's arguments for S3's own operations."""
    bucket, _, key = object_path(path).partition("/")
    return {"Bucket": bucket, "Key": key}


# Requests


def file_system() -> Any:
    """Return s3fs's file system, one for each process. Listings are not cached, since other drivers write meanwhile."""
    import s3fs  # an optional dependency

    return s3fs.S3FileSystem(use_listings_cache=False)


class Unanswered(StepFailed, OSError):
    """Failure of S3 to answer as it should, in one line. Another attempt may succeed."""


def _answered(function: Callable[..., R]) -> Callable[..., R]:
    """Wrap a function that talks to S3, so that it raises Unanswered if that fails.

    FileNotFoundError and errors of this machine's disk pass unchanged.
    """

    @wraps(function)
    def asking(*arguments: Any, **named: Any) -> R:
        try:
            return function(*arguments, **named)
        except (FileNotFoundError, Unanswered):
            raise
        except Exception as error:
            from_client = type(error).__module__.partition(".")[0] in ("aiohttp", "botocore", "s3fs")
            if not from_client and (not isinstance(error, OSError) or error.errno in OF_THE_DISK):
                raise
            raise Unanswered(f"S3 does not answer as it should: {first_line(error)}") from error

    return asking


def check_access(path: Path) -> None:
    """Raise UserError if a path is in a cache of S3 and its bucket cannot be used."""
    if not is_cached(path):
        return
    name, bucket = f"--store {url(path)}", _bucket_and_key(path)["Bucket"]
    try:
        file_system().call_s3("head_bucket", Bucket=bucket)
    except ImportError:
        same = metadata.version("fsspec")  # s3fs is released with it, under the same version
        raise UserError(
            f"{name}: s3fs is not installed. Install it here and on every node: pip install s3fs=={same}"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{name}: there is no bucket {bucket}") from None
    except PermissionError:
        raise UserError(f"{name}: the credentials may not use this bucket") from None
    except Exception as error:  # botocore raises many kinds
        raise UserError(f"{name}: {first_line(error)}; credentials and endpoint are AWS_... variables") from None


def ray_storage(path: Path) -> dict[str, Any]:
    """Return a path that all nodes can use, as arguments of Ray Train's RunConfig."""
    if not is_cached(path):
        return {"storage_path": str(path)}
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return {"storage_path": object_path(path), "storage_filesystem": PyFileSystem(FSSpecHandler(file_system()))}


@_answered
def listing(folder: Path, prefix: str = "") -> Listing:
    """Return the objects below a folder whose paths relative to it begin with a prefix, by these paths."""
    place = object_path(folder)
    objects = file_system().find(place, detail=True, prefix=prefix)
    return {name.removeprefix(f"{place}/"): details for name, details in objects.items()}


@_answered
def ages(folder: Path) -> dict[str, float]:
    """Return the seconds since each object below a folder was written, by S3's own clock."""
    written = {name: details["LastModified"] for name, details in listing(folder).items()}
    if not written:
        return {}
    answer = file_system().call_s3("head_bucket", Bucket=_bucket_and_key(folder)["Bucket"])
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return {name: (now - time).total_seconds() for name, time in written.items()}


@_answered
def get_file(path: Path, to: Path) -> None:
    """Download the object of a path."""
    file_system().get_file(object_path(path), str(to))


@_answered
def open_file(path: Path) -> Any:
    """Open an object for reading. Only what is read of it is downloaded."""
    return file_system().open(object_path(path), "rb", cache_type="none")


@_answered
def put_file(path: Path) -> dict[str, Any]:
    """Upload a file. Return what S3 says of the object."""
    file_system().put_file(str(path), object_path(path))
    return dict(file_system().info(object_path(path)))


@_answered
def names(folder: Path) -> set[str]:
    """Return the names of a folder's entries."""
    try:
        return {entry.rpartition("/")[2] for entry in file_system().ls(object_path(folder), detail=False)}
    except FileNotFoundError:
        return set()


@_answered
def delete(folder: Path, names: Iterable[str]) -> None:
    """Delete some objects of a folder."""
    in_parallel(lambda name: file_system().rm_file(object_path(folder / name)), names)


@_answered
def delete_if(path: Path, etag: str) -> None:
    """Delete an object if it is still the version with this ETag."""
    try:
        file_system().call_s3("delete_object", **_bucket_and_key(path), IfMatch=etag)
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or _condition_failed(error)):
            raise


@_answered
def read_bodies(paths: list[Path]) -> dict[Path, bytes]:
    """Read the objects that exist at some paths, by one batch of requests."""
    bodies = file_system().cat([object_path(path) for path in paths], on_error="return") if paths else {}
    for body in bodies.values():
        if isinstance(body, BaseException) and not isinstance(body, FileNotFoundError):
            raise body
    return {path: body for path in paths if isinstance(body := bodies[object_path(path)], bytes)}


def read_json(paths: list[Path]) -> dict[Path, Any]:
    """Read JSON objects like `read_bodies`. Raise Damaged for an object that is not JSON."""
    return {path: parsed(body, path, url(path)) for path, body in read_bodies(paths).items()}


@_answered
def read_version(path: Path) -> tuple[str, Any] | None:
    """Return the ETag and the JSON of an object, or None if there is none. Raise Damaged if it is not JSON."""
    try:
        etag = str(file_system().info(object_path(path))["ETag"])
        return etag, parsed(file_system().cat_file(object_path(path)), path, url(path))
    except FileNotFoundError:
        return None


@_answered
def put_json(path: Path, value: Any, **condition: str) -> str | None:
    """Write JSON by one PUT, on a condition (IfMatch, IfNoneMatch). Return its ETag, or None if the condition is not
    met."""
    body = json.dumps(value, indent=1, allow_nan=False).encode()
    try:
        response = file_system().call_s3("put_object", **_bucket_and_key(path), Body=body, **condition)
        return str(response["ETag"])
    except OSError as error:
        if not condition or not (isinstance(error, FileNotFoundError) or _condition_failed(error)):
            raise
    # A PUT whose response was lost is sent again, and then fails because of itself.
    version = read_version(path)
    return version[0] if version is not None and version[1] == json.loads(body) else None


def _condition_failed(error: BaseException) -> bool:
    response = getattr(error.__cause__, "response", {})
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict")


def in_parallel(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for all items, several at once, in this thread's context. The first error is raised."""
    context = copy_context()
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        return list(pool.map(lambda item: context.copy().run(function, item), items))


def first_line(error: BaseException) -> str:
    """Shorten an error to one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
