"""SHA-256 digests of files."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from sparring.components.files import write_json


def digest(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(path: Path) -> str:
    """The same, from a cache by path, size and time of change: a large file is read once for as long as these stay."""
    status = path.stat()
    key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    known = _read()
    if key not in known:
        known[key] = digest(path)
        _write(_read() | {key: known[key]})
    return known[key]


def cache() -> Path:
    """The cache file, in `$SPARRING_CACHE` or else in `~/.cache/sparring`."""
    folder = os.environ.get("SPARRING_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "sparring") / "digests.json"


def _read() -> dict[str, str]:
    try:
        known = json.loads(cache().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # without the cache digests are computed anew
        return {}
    return known if isinstance(known, dict) else {}


def _write(known: dict[str, str]) -> None:
    """Replace the cache by one rename. Of two writers at the same time, one's digests are lost and computed again."""
    with contextlib.suppress(OSError):  # a home directory that is read-only costs time, not results
        cache().parent.mkdir(parents=True, exist_ok=True)
        write_json(cache(), known)
