"""SHA-256 digests of files."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from sparring.components.files import write_json


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(path: Path) -> str:
    """Return a file's digest. It is cached by path, size and time of change, so that a large file is read only once."""
    status = path.stat()
    key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    digests = _read()
    if key not in digests:
        digests[key] = digest(path)
        _write(_read() | {key: digests[key]})
    return digests[key]


def cache() -> Path:
    """Return the path of the cache file, in `$SPARRING_CACHE` or else in `~/.cache/sparring`."""
    folder = os.environ.get("SPARRING_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "sparring") / "digests.json"


def _read() -> dict[str, str]:
    try:
        digests = json.loads(cache().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # without the cache, digests are computed again
        return {}
    return digests if isinstance(digests, dict) else {}


def _write(digests: dict[str, str]) -> None:
    """Replace the cache. If two processes write at the same time, the lost digests are computed again."""
    with contextlib.suppress(OSError):  # with a read-only home directory there is no cache
        cache().parent.mkdir(parents=True, exist_ok=True)
        write_json(cache(), digests)
