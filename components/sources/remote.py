"""Source data on object stores and web servers, read through fsspec: `s3://`, `gs://`, `hf://`, `https://`, and
archives on them such as `zip://::https://host/collection.zip`.

Readers read a copy on the machine's disk. Files are downloaded one after another, each as a stream, and only those that
are new or have another version. A download that was interrupted goes on with the files that are not there yet.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from sparring.components.files import file_names, replacing

VARIABLE = "SPARRING_CACHE"
VERSION_KEYS = {"size", "etag", "lastmodified", "created", "updated", "mtime", "crc", "blobid", "contentmd5", "digest"}
"""Facts about a file that change with its contents, as file systems name them without hyphens and underscores."""
VERSIONS = "versions.json"


class Copy(NamedTuple):
    """The result of copying a URL."""

    path: Path
    """The file or folder. Nothing is there if the URL could not be read."""
    problem: str
    """Why the URL could not be read, or ""."""


def is_url(path: str) -> bool:
    """Tell whether a declared path is a URL."""
    return "://" in path


def local_path(url: str) -> Path:
    """Return the path of the copy of a URL. If it cannot be read, return a path at which nothing is."""
    return copied(url).path


def problems(paths: Sequence[str]) -> list[str]:
    """Say for paths from `local_path` at which nothing is why their URLs could not be read."""
    failed = {str(Path(url)): (url, copy.problem) for url, copy in _copies.items() if copy.problem}
    named = {failed[place] for place in failed for path in paths if Path(path).is_relative_to(place)}
    return [f"{url}: cannot be read: {problem}" for url, problem in sorted(named)]


def url_of(path: str) -> str:
    """Return the URL of a path in a copy, or the path itself if it is in none."""
    for url, copy in _copies.items():
        if not copy.problem and Path(path).is_relative_to(copy.path):
            inside = Path(path).relative_to(copy.path).as_posix()
            return url if inside == "." else f"{url.rstrip('/')}/{inside}"
    return path


_copies: dict[str, Copy] = {}


def copied(url: str) -> Copy:
    """Copy what is at a URL to this machine, once a process: what is new or has changed since the last time."""
    if url not in _copies:
        try:
            _copies[url] = Copy(_copy(url), "")
        except Exception as error:  # each file system raises its own
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            _copies[url] = Copy(Path(url), message)
    return _copies[url]


def _copy(url: str) -> Path:
    import fsspec

    folder = _folder(url)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        outer, _, archive = url.partition("::")  # an archive is copied as a whole: some servers send no parts of files
        system, root = fsspec.core.url_to_fs(f"{outer}::file://{_copy(archive)}" if archive else url)
        listed = _listed(system, root)
        if not listed:
            raise FileNotFoundError("no files are there")
        place = folder / next(iter(file_names([root.rstrip("/").rpartition("/")[2] or "data"]).values()))
        versions = {name: _version(facts) for name, facts in listed.items()}
        had = json.loads((folder / VERSIONS).read_text()) if (folder / VERSIONS).exists() else {}
        _remove_others(place, set(versions))
        wanted = [name for name, version in versions.items() if had.get(name) != version or not (place / name).exists()]
        sizes = [int(listed[name].get("size") or 0) for name in wanted]
        with tqdm(total=sum(sizes), desc=url, unit="B", unit_scale=True, disable=None, leave=False) as bar:
            for name, size in zip(wanted, sizes, strict=True):
                target = place / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    system.get_file(listed[name]["name"], str(temporary))
                had[name] = versions[name]
                with replacing(folder / VERSIONS) as temporary:
                    temporary.write_text(json.dumps(had))
                bar.update(size)
    return place


def _folder(url: str) -> Path:
    """Return the folder of a URL's copy."""
    root = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "sparring").absolute()
    return root / "data" / hashlib.sha256(url.encode()).hexdigest()[:16]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process copies into a folder."""
    with (folder / ".lock").open("a") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _listed(system: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return what a file system says of the files below a path, by their names inside. A file is named ""."""
    if "http" in system.protocol:  # a page has links, and no files
        return {"": {**system.info(root), "name": root}}
    files: dict[str, dict[str, Any]] = system.find(root, detail=True)
    top = root.rstrip("/")
    names = {path.removeprefix(top).lstrip("/"): {**facts, "name": path} for path, facts in sorted(files.items())}
    if outside := next((name for name in names if ".." in name.split("/")), None):
        raise ValueError(f"{outside!r} leads out of the folder")
    return names


def _version(facts: dict[str, Any]) -> dict[str, str]:
    """Return what identifies the contents of a file."""
    plain = {key.lower().replace("-", "").replace("_", ""): str(value) for key, value in facts.items()}
    return {key: plain[key] for key in sorted(VERSION_KEYS & set(plain))}


def _remove_others(place: Path, names: set[str]) -> None:
    """Remove the files of a copy that the URL no longer has."""
    if place.is_dir() and "" in names:
        shutil.rmtree(place)
    for path in place.rglob("*") if place.is_dir() else ():
        if path.is_file() and path.relative_to(place).as_posix() not in names:
            path.unlink()
