"""Digests of files, remembered by path, size and time of change so that a large file is read for them once."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from components.files import write_json


def sha256(path: Path) -> str:
    """The SHA-256 of a file, from the cache where the file has not changed."""
    status = path.stat()
    key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    known = _read()
    if key not in known:
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        _write(_read() | {key: known[key]})
    return known[key]


def cache() -> Path:
    """Where digests are remembered: in `$SPARRING_CACHE`, or in `~/.cache/sparring`."""
    folder = os.environ.get("SPARRING_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "sparring") / "digests.json"


def _read() -> dict[str, str]:
    try:
        known = json.loads(cache().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a cache may always be lost
        return {}
    return known if isinstance(known, dict) else {}


def _write(known: dict[str, str]) -> None:
    """One rename, so that a reader never sees half of it; of two writers at once one is forgotten."""
    with contextlib.suppress(OSError):  # a home that cannot be written costs time, not results
        cache().parent.mkdir(parents=True, exist_ok=True)
        write_json(cache(), known)
