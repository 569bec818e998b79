"""Downloads and uploads between S3 and a node's cache. For a store in a directory none of these functions does
anything.

A file on S3 is complete as soon as it is there. A directory is complete when its `.uploaded` is there, which is
uploaded last. For each transferred file the cache notes the version of the object (ETag), because sizes and times do
not tell versions apart.
"""

import fcntl
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sparring.components.files import replacing, write_json
from sparring.components.timing import timed
from sparring.workflows.store import s3
from sparring.workflows.store.dag import mapped
from sparring.workflows.store.store import NOT_MADE, is_made

UPLOADED, VERSIONS = ".uploaded", ".versions"


def localize(value: Any) -> Any:
    """Replace each path of S3's cache in a value (also in text) by this node's path, after downloading it.

    A task names its artifacts by the paths of the node that sent it. This function turns them into paths of the node
    that works.
    """

    def local(leaf: Any) -> Any:
        if not (isinstance(leaf, (str, Path)) and f"/{s3.SCHEME}/" in str(leaf)):
            return leaf
        path = s3.local_path(Path(leaf))
        download(path)
        return type(leaf)(path)

    return mapped(value, local)


def download(*paths: Path, exact: bool = False) -> None:
    """Download files or directories of artifacts. A directory that is not complete on S3 is left out.

    `exact` also deletes the files of these artifacts that are in the cache and not on S3. Processes of one node that
    ask for the same artifact at once download it once.
    """
    for artifact in dict.fromkeys(_artifact_of(path) for path in paths if s3.is_cached(path)):
        artifact.mkdir(parents=True, exist_ok=True)
        with timed("files"), _download_lock(artifact):
            complete = _complete_files(s3.listing(artifact))
            wanted = [name for name in complete if any((artifact / name).is_relative_to(path) for path in paths)]
            s3.in_parallel(partial(_download_file, artifact, complete), wanted)
            for name in _local_files(artifact, artifact) - complete.keys() if exact else ():
                (artifact / name).unlink(missing_ok=True)
                with suppress(OSError):  # the directory has other files
                    (artifact / name).parent.rmdir()


def upload(path: Path, remote: s3.Listing | None = None) -> None:
    """Upload a file, or a directory as one thing: the files that S3 lacks or has in another version.

    `remote` is the artifact's listing, if it is known.
    """
    if not s3.is_cached(path):
        return
    with timed("files"):
        artifact = _artifact_of(path)
        remote = s3.listing(artifact) if remote is None and path.is_dir() else remote or {}
        marker = f"{path.relative_to(artifact)}/{UPLOADED}"
        files = _local_files(artifact, path)
        changed = [name for name in files if name not in remote or not _is_current(artifact, name, remote[name])]
        if marker in remote and changed:
            s3.delete_if(artifact / marker, remote[marker]["ETag"])
        s3.in_parallel(partial(_upload_file, artifact), changed)
        if path.is_dir() and files and (changed or marker not in remote):
            # No two markers are equal, so a late deletion of the previous marker does not delete this one.
            s3.put_json(artifact / marker, uuid.uuid4().hex)


def sync(folder: Path, *, delete: bool = False) -> None:
    """Upload a directory, each of its subdirectories as a unit. `delete` removes from S3 what is gone here."""
    if not s3.is_cached(folder) or not folder.is_dir():
        return
    with timed("files"):
        artifact = _artifact_of(folder)
        remote = s3.listing(artifact)
        for child in sorted(folder.iterdir()):
            if is_made(child.name):
                upload(child, remote)
        removed = [
            name
            for name in remote
            if delete
            and (artifact / name).is_relative_to(folder)
            and Path(name).parts[0] not in NOT_MADE
            and not (artifact / name.removesuffix(f"/{UPLOADED}")).exists()
        ]
        s3.delete(artifact, removed)


@contextmanager
def _download_lock(artifact: Path) -> Iterator[None]:
    with (artifact / ".download-lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete_files(remote: s3.Listing) -> s3.Listing:
    """Select the files of a listing that are in no directory, in a complete directory, or a part of a table.

    Workers write a large table in parts, each on its own (`tables.parts`).
    """
    directories = {name.removesuffix(f"/{UPLOADED}") for name in remote if name.endswith(f"/{UPLOADED}")}
    return {
        name: details
        for name, details in remote.items()
        if is_made(name)
        and (
            "/" not in name
            or Path(name).parent.suffix == ".parquet"
            or any(str(part) in directories for part in Path(name).parents)
        )
    }


def _local_files(artifact: Path, path: Path) -> set[str]:
    """Return the files of an artifact at or below a path of the cache, relative to the artifact."""
    files = [path] if path.is_file() else path.rglob("*")
    names = (str(file.relative_to(artifact)) for file in files if file.is_file())
    return {name for name in names if is_made(name)}


def _is_current(artifact: Path, name: str, details: Mapping[str, Any]) -> bool:
    """Check whether a file of the cache equals the object on S3.

    Its last transfer was of this version, and the file is unchanged since then.
    """
    try:
        return bool(json.loads((artifact / VERSIONS / name).read_text()) == _version(artifact / name, details))
    except (FileNotFoundError, ValueError):
        return False


def _version(path: Path, details: Mapping[str, Any]) -> list[Any]:
    """Return the object's digest on S3 (ETag), and properties that change whenever the file in the cache is written."""
    return [_etag(details), *_state(path)]


def _etag(details: Mapping[str, Any]) -> str:
    return str(details["ETag"]).strip('"')


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _note_version(artifact: Path, name: str, version: list[Any]) -> None:
    (artifact / VERSIONS / name).parent.mkdir(parents=True, exist_ok=True)
    write_json(artifact / VERSIONS / name, version)


def _download_file(artifact: Path, remote: s3.Listing, name: str) -> None:
    path = artifact / name
    if _is_current(artifact, name, remote[name]):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        s3.get_file(path, temporary)
    # The listing's version, even if the object was replaced since. The next listing then has another version.
    _note_version(artifact, name, _version(path, remote[name]))


def _upload_file(artifact: Path, name: str) -> None:
    path = artifact / name
    before = _state(path)  # so that a write during the upload counts as a change
    _note_version(artifact, name, [_etag(s3.put_file(path)), *before])


def _artifact_of(path: Path) -> Path:
    """Return the directory of the artifact that a path belongs to."""
    for folder in (path, *path.parents):
        if re.fullmatch(r"\w+-[0-9a-f]{12}", folder.name):
            return folder
    raise ValueError(f"{path}: belongs to no artifact")
