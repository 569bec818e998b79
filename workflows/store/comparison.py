"""Compare two stores: every artifact, file by file."""

import filecmp
import json
from pathlib import Path
from typing import Any

from sparring.workflows.store.store import DIGESTS, LOCK, RECORD

VARYING = {"started", "time", "host", "machine", "nodes", "cluster", "code", "digests"}
"""Keys of records that say when and where a run went, which always differ. Keys with `second` in their names differ
too."""
UNLIKE = {LOCK, DIGESTS, "ray"}
"""Entries of an artifact that belong to its driver: the lock's file, digests of files with times in them, and Ray
Train's notes."""
DIFFERS = "differs"
LUCENE = "lucene_index-"
"""Beginning of the names of Lucene indexes. Lucene samples an id for each index, and writes a segment for each thread.
Their rankings show whether two indexes are the same."""


def first_difference(store: Path, reference: Path) -> str | None:
    """Return the first artifact or file of `store` that differs from `reference`, and why, or None."""
    present, expected = _artifacts(store), _artifacts(reference)
    if missing := sorted(expected - present):
        return f"{missing[0]}: is not there"
    if added := sorted(present - expected):
        return f"{added[0]}: the other run has none"
    for name in sorted(present):
        if difference := artifact_difference(store / name, reference / name):
            return f"{name}/{difference}"
    return None


def _artifacts(store: Path) -> set[str]:
    return {path.name for path in store.iterdir() if path.is_dir() and not path.name.startswith(".")}


def artifact_difference(artifact: Path, reference: Path) -> str | None:
    """Return the first file of an artifact that differs from the reference, and how, or None."""
    if not (artifact / RECORD).is_file():
        return f"{RECORD}: the artifact is not finished"
    differences = files_apart(artifact, reference)
    if not differences and not _same(artifact / RECORD, reference / RECORD):
        return f"{RECORD}: {DIFFERS}"
    return next((f"{name}: {difference}" for name, difference in differences.items()), None)


def files_apart(artifact: Path, reference: Path) -> dict[str, str]:
    """Return the files of an artifact, except its record, that differ from the reference, and how."""
    if artifact.name.startswith(LUCENE):
        return {}
    present, expected = _files(artifact), _files(reference)
    return {
        **dict.fromkeys(sorted(expected - present), "is not there"),
        **dict.fromkeys(sorted(present - expected), "is left over"),
        **{name: DIFFERS for name in sorted(present & expected) if not _same(artifact / name, reference / name)},
    }


def _files(artifact: Path) -> set[str]:
    paths = (path.relative_to(artifact) for path in artifact.rglob("*") if path.is_file())
    return {str(name) for name in paths if name.parts[0] not in {*UNLIKE, RECORD}}


def _same(file: Path, reference: Path) -> bool:
    """Check whether two files have the same content. In JSON, values that vary between runs are ignored."""
    if file.suffix in (".json", ".jsonl"):
        return _values(file) == _values(reference)
    return filecmp.cmp(file, reference, shallow=False)


def _values(path: Path) -> list[Any]:
    text = path.read_text()
    return [_constant(json.loads(part)) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _constant(item) for key, item in value.items() if key not in VARYING and "second" not in key}
    return [_constant(item) for item in value] if isinstance(value, list) else value
