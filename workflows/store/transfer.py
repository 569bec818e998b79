"""Downloads and uploads between S3 and a node's cache. For a store in a directory the files are there already.

A file on S3 is complete as soon as it is there. A directory is complete when its `.uploaded` is there, which is
uploaded last. For each transferred file the cache notes the version of the object (ETag), because sizes and times do
not tell versions apart.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from sparring.components import files
from sparring.components.files import replacing, write_json
from sparring.components.timing import timed
from sparring.workflows.store import s3
from sparring.workflows.store.cache import VERSIONS, download_lock, hold, is_on_s3, make_room, state
from sparring.workflows.store.dag import mapped
from sparring.workflows.store.store import NOT_MADE, among, is_made

UPLOADED = ".uploaded"

Leaves = Callable[[str], bool]
"""Check whether a file of an artifact is left on S3."""


def localize(arguments: Mapping[str, Any], on_demand: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Replace each path of S3's cache in arguments (also in text) by this node's path, after downloading it.

    A task names its artifacts by the paths of the node that sent it. This function turns them into paths of the node
    that works. `on_demand` has files (glob patterns) that it leaves on S3, by the name of the argument.
    """

    def local(patterns: Sequence[str], leaf: Any) -> Any:
        if not (isinstance(leaf, (str, Path)) and f"/{s3.SCHEME}/" in str(leaf)):
            return leaf
        path = s3.local_path(Path(leaf))
        download(path, leaves=(lambda name: any(fnmatch(name, pattern) for pattern in patterns)) if patterns else None)
        return type(leaf)(path)

    return {name: mapped(value, partial(local, (on_demand or {}).get(name, ()))) for name, value in arguments.items()}


def download(*paths: Path, exact: bool = False, leaves: Leaves | None = None) -> None:
    """Download files or directories of artifacts. A directory that is not complete on S3 is left out.

    `leaves` says which files are left out too. `exact` also deletes the files of these artifacts that are in the cache
    and not on S3. Processes of one node that ask for the same artifact at once download it once. What was downloaded
    stays in the cache as `cache.holding` says.
    """
    for artifact, of_artifact in _by_artifact(path for path in paths if s3.is_cached(path)).items():
        artifact.mkdir(parents=True, exist_ok=True)
        with timed("files"), download_lock(artifact):
            complete = _complete_files(s3.listing(artifact, "" if exact else _prefix(artifact, of_artifact)))
            wanted = [name for name in complete if any((artifact / name).is_relative_to(path) for path in of_artifact)]
            wanted = [name for name in wanted if leaves is None or not leaves(name)]
            missing = [name for name in wanted if not _is_current(artifact, name, complete[name])]
            for path in [artifact / name for name in wanted] if leaves else of_artifact:
                hold(path, artifact)
            make_room(sum(complete[name]["size"] for name in missing), artifact)
            s3.in_parallel(partial(_download_file, artifact, complete), missing)
            for name in _local_files(artifact, artifact) - complete.keys() if exact else ():
                (artifact / name).unlink(missing_ok=True)
                with suppress(OSError):  # the directory has other files
                    (artifact / name).parent.rmdir()


_leaves: dict[Path, Leaves] = {}
"""Files that only workers read, by the directories of the steps that this process runs."""


@contextmanager
def left_to_workers(out: Path, leaves: Leaves) -> Iterator[None]:
    """Let this process leave files of a step on S3 until the block ends. Workers read them; here nobody does."""
    _leaves[out] = leaves
    try:
        yield
    finally:
        del _leaves[out]


def collect(out: Path, *, exact: bool = False) -> None:
    """Download the files that workers have written into a step's directory, except those that only workers read."""
    download(out, exact=exact, leaves=_leaves.get(out))


def finished_sizes(out: Path) -> dict[str, int]:
    """Return the bytes of each finished file and directory in a step's directory, wherever it was written."""
    if s3.is_cached(out):
        bytes_of = {name: int(details["size"]) for name, details in _complete_files(s3.listing(out)).items()}
    else:
        bytes_of = {name: (out / name).stat().st_size for name in _local_files(out, out)}
    sizes: dict[str, int] = {}
    for name, size in bytes_of.items():
        for entry in map(str, (Path(name), *Path(name).parents)):
            sizes[entry] = sizes.get(entry, 0) + size
    return sizes


def remove(out: Path, *parts: str) -> None:
    """Remove parts (glob patterns of entries) of a step's directory, wherever they were written.

    The other files of this node are uploaded first, since they may have been made of these parts.
    """
    if s3.is_cached(out):
        sync(out)
        s3.delete(out, [name for name in s3.listing(out) if among(name, parts)])
    files.remove(out, *parts)


def upload(path: Path, remote: s3.Listing | None = None) -> None:
    """Upload a file, or a directory as one thing: the files that S3 lacks or has in another version.

    `remote` is the artifact's listing, if it is known. What was uploaded stays in the cache as `cache.holding` says.
    """
    if not s3.is_cached(path):
        return
    with timed("files"):
        artifact = _artifact_of(path)
        with download_lock(artifact):
            hold(path, artifact)
        remote = s3.listing(artifact) if remote is None and path.is_dir() else remote or {}
        marker = f"{path.relative_to(artifact)}/{UPLOADED}"
        files = _local_files(artifact, path)
        # What did not change here since its last transfer is no newer than what S3 has.
        changed = [name for name in files if name not in remote or not is_on_s3(artifact, artifact / name)]
        if marker in remote and changed:
            s3.delete_if(artifact / marker, remote[marker]["ETag"])
        s3.in_parallel(partial(_upload_file, artifact), changed)
        if path.is_dir() and files and (changed or marker not in remote):
            # No two markers are equal, so a late deletion of the previous marker does not delete this one.
            s3.put_json(artifact / marker, uuid.uuid4().hex)


def finish(out: Path) -> None:
    """Upload a step's directory, and remove from S3 what is gone here, except what was left to workers."""
    sync(out, delete=True, kept=_leaves.get(out))


def sync(folder: Path, *, delete: bool = False, kept: Leaves | None = None) -> None:
    """Upload a directory, each of its subdirectories as a unit. `delete` removes from S3 what is gone here and not
    `kept`."""
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
            and not (kept is not None and kept(name))
            and (artifact / name).is_relative_to(folder)
            and Path(name).parts[0] not in NOT_MADE
            and not (artifact / name.removesuffix(f"/{UPLOADED}")).exists()
        ]
        s3.delete(artifact, removed)


def _by_artifact(paths: Iterable[Path]) -> dict[Path, list[Path]]:
    artifacts: dict[Path, list[Path]] = {}
    for path in paths:
        artifacts.setdefault(_artifact_of(path), []).append(path)
    return artifacts


def _prefix(artifact: Path, paths: Sequence[Path]) -> str:
    """Return the beginning that the names of an artifact's entries with these paths share."""
    entries = [path.relative_to(artifact).parts[0] if path != artifact else "" for path in paths]
    return os.path.commonprefix(entries)  # noqa: RUF071  (characters are meant)


def _open_elsewhere(path: Path) -> Any:
    return s3.open_file(path) if s3.is_cached(path) else path


def _parts_elsewhere(path: Path) -> list[Path] | None:
    """List the parts of a table on S3, since the cache may have only some of them. None if the table is one file."""
    if not s3.is_cached(path) or path.is_file():
        return None
    artifact = _artifact_of(path)
    folder = f"{path.relative_to(artifact)}/"
    return sorted(artifact / name for name in s3.listing(artifact, folder) if is_made(name)) or None


files.open_elsewhere, files.parts_elsewhere = _open_elsewhere, _parts_elsewhere


def _complete_files(remote: s3.Listing) -> s3.Listing:
    """Select the files of a listing that are in no directory, in a complete directory, or a part of a table.

    Workers write a large table in parts, each on its own (`tables.parts`).
    """
    directories = {name.removesuffix(f"/{UPLOADED}") for name in remote if name.endswith(f"/{UPLOADED}")}

    def is_complete(name: str) -> bool:
        folders = list(Path(name).parents)[:-1]
        return not folders or any(str(folder) in directories or folder.suffix == ".parquet" for folder in folders)

    return {name: details for name, details in remote.items() if is_made(name) and is_complete(name)}


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
    return [_etag(details), *state(path)]


def _etag(details: Mapping[str, Any]) -> str:
    return str(details["ETag"]).strip('"')


def _note_version(artifact: Path, name: str, version: list[Any]) -> None:
    (artifact / VERSIONS / name).parent.mkdir(parents=True, exist_ok=True)
    write_json(artifact / VERSIONS / name, version)


def _download_file(artifact: Path, remote: s3.Listing, name: str) -> None:
    path = artifact / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        s3.get_file(path, temporary)
    # The listing's version, even if the object was replaced since. The next listing then has another version.
    _note_version(artifact, name, _version(path, remote[name]))


def _upload_file(artifact: Path, name: str) -> None:
    path = artifact / name
    before = state(path)  # so that a write during the upload counts as a change
    _note_version(artifact, name, [_etag(s3.put_file(path)), *before])


def _artifact_of(path: Path) -> Path:
    """Return the directory of the artifact that a path belongs to."""
    for folder in (path, *path.parents):
        if re.fullmatch(r"\w+-[0-9a-f]{12}", folder.name):
            return folder
    raise ValueError(f"{path}: belongs to no artifact")
