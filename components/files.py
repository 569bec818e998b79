"""Atomic writes: a file or directory exists complete and on the disk, or not at all.

Steps write all their results with this module. After a power cut, a file that exists by name or in an artifact's record
must still have its contents.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.config import Damaged, UserError
from sparring.components.timing import timed

if TYPE_CHECKING:
    import numpy as np


UMASK = os.umask(0)
os.umask(UMASK)  # it can only be read by setting it


FULL = (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR)
"""Errors of a rename to a directory that is not empty, or of a file to a directory."""


@contextmanager
def replacing(path: Path, *, same: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`. Rename it to `path` if the block succeeds, and remove it if it fails.

    The block writes a file or a directory to the temporary path. A file at `path` is replaced. If `path` is a directory
    that is not empty, another process wrote it meanwhile. With `same`, its contents must be the same, and it is kept.
    Otherwise this is a UserError.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with timed("files"):
            yield temporary
            _share(temporary)
            _sync(temporary)
            try:
                os.replace(temporary, path)
            except OSError as error:
                if not path.is_dir() or error.errno not in FULL:
                    raise
                if not same:
                    raise UserError(
                        f"{path}: exists and is not empty: something else was written there meanwhile"
                    ) from None
                shutil.rmtree(temporary)
            _sync_one(path.parent)  # only its entries, because others may write other files there
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
        raise


def made_once(path: Path, make: Callable[[Path], None]) -> None:
    """Let `make` write a file or a directory, unless it is there. Other processes that want it wait meanwhile.

    On a filesystem without locks several processes write it, each the same. The lock, `<path>.lock`, remains.
    """
    if path.exists():
        return
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with replacing(path) as temporary:
                make(temporary)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`. Rename it to `path` if the block succeeds, and remove it if it fails.

    Temporary folders of killed processes are removed first. UserError if another process wrote `path` meanwhile.
    """
    for stale in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"):
        with suppress(OSError), _locked(stale) as alone:
            if alone:
                shutil.rmtree(stale)
    with ExitStack() as until_renamed, replacing(path, same=False) as temporary:
        begun = temporary.with_name(f"{temporary.name}.new")  # until it is locked, it must not look like a leftover
        begun.mkdir(parents=True)
        until_renamed.enter_context(_locked(begun))
        begun.rename(temporary)
        yield temporary


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock. Yield False if another process holds it, or if the filesystem has no locks."""
    descriptor, held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), False
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held
    finally:
        os.close(descriptor)


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a different file name for each name. Characters that are unsafe in a file name become hyphens.

    >>> file_names(["BM25 + start: a/b", "BM25 + start, a/b", "start,-a-b"])
    {'BM25 + start: a/b': 'BM25-+-start-a-b', 'BM25 + start, a/b': 'BM25-+-start,-a-b', 'start,-a-b': 'start,-a-b'}
    >>> file_names(["a b", "a/b", "..", "a-b"])
    {'a b': 'a-b', 'a/b': 'a-b-2', '..': '-', 'a-b': 'a-b-3'}
    """
    chosen: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"^\.+|[^\w.,+()@=-]+", "-", name.replace(": ", "-"))
        numbered = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
        chosen[name] = next(candidate for candidate in numbered if candidate not in chosen.values())
    return chosen


def save_array(path: Path, array: np.ndarray) -> None:
    """Save an array to exactly this path, without the suffix .npy that `numpy.save` adds. This is not atomic."""
    import numpy as np

    with timed("files"), path.open("wb") as file:
        np.save(file, array)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a `.npy` file atomically."""
    with replacing(path) as temporary:
        save_array(temporary, array)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Damaged if the file is cut or missing."""
    with naming_damage(path):
        return json.loads(path.read_text(encoding="utf-8"))


def parsed(body: bytes, path: Path, place: str) -> Any:
    """Return the value in a file's JSON content. Damaged if it is not JSON. `place` tells people where the file is."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise Damaged(f"{place}: not JSON: {error}", path) from None


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raise Damaged if this block cannot read a file or folder, such as a model's, because a file is cut or missing."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        check_whole(path)
        lost = isinstance(error, FileNotFoundError) and error.filename
        if lost and Path(lost).is_relative_to(path):
            raise Damaged(f"{lost}: there is no such file", path) from None
        if isinstance(error, OSError) and error.errno is None and path.exists():  # raised by transformers itself
            raise Damaged(f"{path}: {str(error).splitlines()[0].rstrip('.')}", path) from None
        raise


def check_whole(path: Path) -> None:
    """Raise Damaged if a file, or a file in a folder, is not whole.

    A file's suffix says how to read it: as JSON, safetensors, Parquet or an array. Hidden files are skipped, because
    they are being written or belong to a cache.
    """
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        complaint, reader = _OPENED.get(file.suffix, ("", None))
        hidden = file != path and any(part.startswith(".") for part in file.relative_to(path).parts)
        if reader is None or hidden or not file.is_file():
            continue
        try:
            reader(file)
        except Exception as error:  # each library has its own errors, and Arrow's may be an OSError without a number
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).splitlines()[0].rstrip(".")
            detail = "" if "pickle" in reason else f": {reason}"  # NumPy advises to load it unsafely
            raise Damaged(f"{file}: {complaint}{detail}", file) from None


def _open_safetensors(file: Path) -> None:
    from safetensors import safe_open  # only a few commands need it

    with safe_open(file, "numpy"):
        pass


def _open_parquet(file: Path) -> None:
    import pyarrow.parquet as pq

    pq.ParquetFile(file).close()


def _open_array(file: Path) -> None:
    import numpy as np

    np.load(file, mmap_mode="r")


_OPENED = {
    ".json": ("not JSON", lambda file: json.loads(file.read_text(encoding="utf-8"))),
    ".safetensors": ("not a safetensors file, or truncated", _open_safetensors),
    ".parquet": ("not a Parquet file, or truncated", _open_parquet),
    ".npy": ("not an array, or truncated", _open_array),
}
"""Message for a damaged file, and function that opens it, by its suffix."""


def _only_here(path: Path) -> Any:
    return path


open_elsewhere: Callable[[Path], Any] = _only_here
"""Function that opens a file which is not on this machine, for reading in parts. A store on other machines sets it."""


def _parts_here(path: Path) -> list[Path] | None:
    return None


parts_elsewhere: Callable[[Path], list[Path] | None] = _parts_here
"""Function that lists the parts of a table in a store on other machines. None if the table is on this machine."""


def readable(path: Path) -> Any:
    """Return a file for Parquet's readers: the path or, if the file is only in a store on other machines, an open file
    there, of which no more is transferred than is read."""
    return path if path.exists() else open_elsewhere(path)


def append(path: Path, text: str) -> None:
    """Append to a file. This is not atomic: after a kill or a power cut, the end of the text may be missing."""
    with timed("files"), path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove(folder: Path, *patterns: str) -> None:
    """Remove files and directories by name or glob pattern. It is not an error if there are none."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        drop(path) if path.is_dir() else path.unlink()


def drop(folder: Path) -> None:
    """Rename a directory, then remove it. If the process is killed meanwhile, a leftover with another name remains."""
    dropped = folder.rename(folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}"))
    shutil.rmtree(dropped, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder, and from tables in parts that are in it. No other
    process may write to it."""
    remove(folder, ".*.????????", "*.parquet/.*.????????")


def nearest(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists and is visible to this user."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def unwritable(folder: Path) -> str | None:
    """Return why nothing can be written into a folder, which may not exist yet. Return None if it can."""
    place = nearest(folder)
    if not place.is_dir():
        return f"{place} is a file"
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        return f"{place} cannot be written to ({error.strerror})"
    return None


def _share(path: Path) -> None:
    """Let others read what this process's umask allows. Only the owner can read files that safetensors writes."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if file.is_file() and file.stat().st_mode & 0o777 == 0o600:
            file.chmod(0o666 & ~UMASK)


def _sync(path: Path) -> None:
    """Write a file, or a directory with all its contents, from the system's buffers to the disk."""
    if path.is_dir():
        for child in path.rglob("*"):
            _sync_one(child)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
