"""Atomic writes: a file or directory is complete and on the disk, or is not there.

All that steps leave is written through here: a power cut must not take the contents of a file whose name, or whose
artifact's record, is there.
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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.config import Damaged, UserError
from sparring.components.timing import timed

if TYPE_CHECKING:
    import numpy as np


UMASK = os.umask(0)
os.umask(UMASK)  # it can only be read by being set


FULL = (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR)
"""What a rename to a directory ends with that is there and not empty, or where a file comes."""


@contextmanager
def replacing(path: Path, *, same: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`, which is renamed to it when the block succeeds and removed when it fails.

    The block may write a file or a directory there. A file at `path` is replaced. A directory at `path` that is not
    empty is kept, as another process has written the `same`; where it may have written something else, that is a
    UserError.
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
            _sync_one(path.parent)  # only its entries: others may write other files there
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Open a temporary folder next to `path`, which is renamed to it on success and removed on failure.

    Such folders of killed processes are removed first. UserError if another process was quicker.
    """
    for stale in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"):
        with suppress(OSError), _locked(stale) as alone:
            if alone:
                shutil.rmtree(stale)
    with ExitStack() as until_renamed, replacing(path, same=False) as temporary:
        begun = temporary.with_name(f"{temporary.name}.new")  # which nobody takes for a rest before it is locked
        begun.mkdir(parents=True)
        until_renamed.enter_context(_locked(begun))
        begun.rename(temporary)
        yield temporary


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock; False where another process does, and on a filesystem without locks."""
    descriptor, held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), False
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held
    finally:
        os.close(descriptor)


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a distinct file name for each name. Characters that may do harm in a file name become hyphens.

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
    """`numpy.save` to exactly this path, without the suffix .npy that numpy adds. Not atomic."""
    import numpy as np

    with timed("files"), path.open("wb") as file:
        np.save(file, array)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a `.npy` file by one atomic rename."""
    with replacing(path) as temporary:
        save_array(temporary, array)


def write_json(path: Path, value: Any) -> None:
    """Write JSON by one atomic rename."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file says; Damaged where it is cut or lost."""
    with naming_damage(path):
        return json.loads(path.read_text(encoding="utf-8"))


def parsed(body: bytes, path: Path, place: str) -> Any:
    """The JSON in a file's content; Damaged where it is none. `place` says for people where the file is."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise Damaged(f"{place}: not JSON: {error}", path) from None


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Read a file, or a folder such as a model's, in this block: Damaged, where it fails because a file is cut or
    lost."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        check_whole(path)
        lost = isinstance(error, FileNotFoundError) and error.filename
        if lost and Path(lost).is_relative_to(path):
            raise Damaged(f"{lost}: there is no such file", path) from None
        if isinstance(error, OSError) and error.errno is None and path.exists():  # transformers' own
            raise Damaged(f"{path}: {str(error).splitlines()[0].rstrip('.')}", path) from None
        raise


def check_whole(path: Path) -> None:
    """Raise Damaged if a file, or a file in a folder, is not whole: JSON, safetensors, Parquet or an array, by its
    name.

    Hidden files are skipped: they are being written, or belong to a cache.
    """
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        complaint, reader = _OPENED.get(file.suffix, ("", None))
        hidden = file != path and any(part.startswith(".") for part in file.relative_to(path).parts)
        if reader is None or hidden or not file.is_file():
            continue
        try:
            reader(file)
        except Exception as error:  # each library's own; Arrow's may be an OSError, but of no system call
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).splitlines()[0].rstrip(".")
            detail = "" if "pickle" in reason else f": {reason}"  # NumPy's advice, to load it unsafely
            raise Damaged(f"{file}: {complaint}{detail}", file) from None


def _open_safetensors(file: Path) -> None:
    from safetensors import safe_open  # few commands need it

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
    ".safetensors": ("not in safetensors, or cut", _open_safetensors),
    ".parquet": ("no Parquet file, or cut", _open_parquet),
    ".npy": ("no array, or cut", _open_array),
}
"""What is said of a damaged file, by its suffix, and how it is opened."""


def append(path: Path, text: str) -> None:
    """Append to a file. Not atomic: after a kill or a power cut the end of the text may be missing."""
    with timed("files"), path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove(folder: Path, *patterns: str) -> None:
    """Remove files and directories by name or glob pattern; it is no error if there are none."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        drop(path) if path.is_dir() else path.unlink()


def drop(folder: Path) -> None:
    """Remove a directory, under another name first: a kill leaves no half of it under its own, and what it does leave
    is removed with other leftovers."""
    dropped = folder.rename(folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}"))
    shutil.rmtree(dropped, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder to which no other process writes."""
    remove(folder, ".*.????????")


def nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that is there as far as this user may see."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder that is there or is to be made; None where it can."""
    place = nearest(folder)
    if not place.is_dir():
        return f"{place} is a file"
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        return f"{place} cannot be written to ({error.strerror})"
    return None


def _share(path: Path) -> None:
    """Let others read what this process's umask lets them: safetensors' files are their owner's alone."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if file.is_file() and file.stat().st_mode & 0o777 == 0o600:
            file.chmod(0o666 & ~UMASK)


def _sync(path: Path) -> None:
    """Flush a file, or a directory with all its contents, to the disk."""
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
