"""The limit of a node's cache of S3: the least recently used files are deleted, except those in use.

Each process notes the paths that it uses in a file that it keeps locked. If the process dies, the kernel releases the
lock, and the note is void. Paths are noted, and files are deleted, only under their artifact's download lock, so a
process cannot lose a file that it has just downloaded. Only files that S3 has too are deleted.
"""

import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from sparring.components.config import UserError
from sparring.workflows.store import s3
from sparring.workflows.store.store import NAME

VERSIONS, USED, DOWNLOADS, USERS = ".versions", ".used", ".download-lock", ".users"
"""Entries of an artifact's directory: the versions of its files on S3, the time when all of it was used last, and the
lock for downloads and deletions. The directory of the notes of who uses what."""
VARIABLE = "SPARRING_CACHE_GB"
DEFAULT_SHARE = 0.5
"""Share that the cache may have of what it and the disk's free space have together, if no limit is set."""
FREED_SHARE = 0.1
"""Share of the limit that is free after files were deleted, so that not every download deletes some."""
PROCESSES = 16
"""Number of processes that may fill the free room at once before each of them measures the cache again."""


class Holds:
    """Paths of the cache that are in use until `close`: files, or directories with all their files."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._note: Path | None = None
        self._descriptor, self._paths = -1, set[Path]()

    def add(self, path: Path, artifact: Path) -> None:
        """Hold a path in an artifact's directory. The caller has the artifact's download lock."""
        with self._changing:
            if path not in self._paths:
                self._paths.add(path)
                os.write(self._descriptor if self._note else self._begin(), f"{path}\n".encode())
        if path.is_file():  # reading does not count: most filesystems note at most one read a day
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        else:
            (artifact / USED).touch()

    def _begin(self) -> int:
        """Create the note. Other processes see it only when it is locked."""
        folder = s3.cache_root() / USERS
        folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        self._descriptor = os.open(folder / f".{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._note = (folder / f".{name}").rename(folder / name)
        return self._descriptor

    def close(self) -> None:
        """Let all paths go."""
        with self._changing:
            if self._note is not None:
                self._note.unlink(missing_ok=True)
                os.close(self._descriptor)
            self._note, self._paths = None, set()


_until_exit = Holds()
_holds: ContextVar[Holds] = ContextVar("holds", default=_until_exit)


@contextmanager
def holding(holds: Holds | None = None) -> Iterator[None]:
    """Keep what this block downloads until the block ends. If `holds` is given and the block succeeds, keep it until
    `holds` is closed. Outside of such a block a process keeps what it downloads until it ends."""
    of_block, succeeded = holds or Holds(), False
    token = _holds.set(of_block)
    try:
        yield
        succeeded = True
    finally:
        _holds.reset(token)
        if holds is None or not succeeded:
            of_block.close()


def hold(path: Path, artifact: Path) -> None:
    """Keep a path as long as the present block says. The caller has the artifact's download lock."""
    _holds.get().add(path, artifact)


@contextmanager
def download_lock(artifact: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold an artifact's download lock. Without `wait`, yield False if another process holds it."""
    with (artifact / DOWNLOADS).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def state(path: Path) -> list[int]:
    """Return properties that change whenever a file is written."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


class _File(NamedTuple):
    used: float
    """Time of the last use, in seconds."""
    size: int
    artifact: Path
    path: Path


_measuring = threading.Lock()
_room: dict[Path, float] = {}
"""Bytes that this process may still download into each cache until it measures the cache again."""


def make_room(size: int, artifact: Path) -> None:
    """Delete files, the least recently used first, so that `size` more bytes fit within the limit.

    The caller has the download lock of `artifact`. If everything is in use, the cache grows beyond its limit.
    """
    root = s3.cache_root()
    with _measuring:
        _room[root] = _room.get(root, 0.0) - size
        if _room[root] >= 0:
            return
        files = list(_files(root))
        total = sum(file.size for file in files)
        limit = limit_bytes() or DEFAULT_SHARE * (total + shutil.disk_usage(root).free)
        if total + size > limit:
            total -= _delete(files, total + size - (1 - FREED_SHARE) * limit, artifact)
        _room[root] = (limit - total - size) / PROCESSES


def limit_bytes() -> float | None:
    """Return the limit that `$SPARRING_CACHE_GB` sets, in bytes, or None."""
    text = os.environ.get(VARIABLE, "")
    try:
        limit = float(text or "inf")
    except ValueError:
        limit = 0.0
    if not limit > 0:
        raise UserError(f"${VARIABLE} is {text!r}. Set it to a number of GB above 0, or leave it out.")
    return limit * 1e9 if text else None


def _files(root: Path) -> Iterator[_File]:
    """Yield the files of all artifacts in a cache."""
    for folder, folders, _ in os.walk(root):
        if not NAME.fullmatch(Path(folder).name):
            continue
        folders.clear()
        artifact = Path(folder)
        of_all = (artifact / USED).stat().st_mtime if (artifact / USED).exists() else 0.0
        for path in artifact.rglob("*"):
            with suppress(FileNotFoundError):  # another process has deleted or renamed it
                if path.is_file() and path.relative_to(artifact).parts[0] not in (VERSIONS, USED, DOWNLOADS):
                    status = path.stat()
                    yield _File(max(of_all, status.st_atime), status.st_size, artifact, path)


def _delete(files: list[_File], excess: float, locked: Path) -> int:
    """Delete files of some bytes together, the least recently used first. Return the bytes freed."""
    freed, held = 0, dict[Path, set[str] | None]()
    with ExitStack() as locks:
        for file in sorted(files):
            if freed >= excess:
                break
            if file.artifact not in held:
                mine = file.artifact == locked or locks.enter_context(download_lock(file.artifact, wait=False))
                held[file.artifact] = _in_use() if mine else None
            in_use = held[file.artifact]
            if in_use is None or not in_use.isdisjoint(map(str, (file.path, *file.path.parents))):
                continue
            if is_on_s3(file.artifact, file.path) or _is_hidden(file):
                file.path.unlink()
                (file.artifact / VERSIONS / file.path.relative_to(file.artifact)).unlink(missing_ok=True)
                freed += file.size
    return freed


def _is_hidden(file: _File) -> bool:
    """Check whether workers of a node have written a file for themselves: into a hidden folder that is not being
    written, such as `.order`."""
    folder, *rest = file.path.relative_to(file.artifact).parts
    return bool(rest) and folder.startswith(".") and not fnmatch(folder, ".*.????????")


def is_on_s3(artifact: Path, path: Path) -> bool:
    """Check whether a file of an artifact has not changed since it was downloaded or uploaded."""
    note = artifact / VERSIONS / path.relative_to(artifact)
    try:
        return bool(json.loads(note.read_text())[1:] == state(path))
    except (FileNotFoundError, ValueError):
        return False


def _in_use() -> set[str]:
    """Return the paths that living processes hold, and delete the notes of dead ones."""
    paths = set[str]()
    for note in (s3.cache_root() / USERS).glob("[!.]*"):
        with suppress(FileNotFoundError), note.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                paths.update(file.read().splitlines())
            else:
                note.unlink(missing_ok=True)
    return paths
