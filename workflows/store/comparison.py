"""Whether two stores have the same: every artifact, file by file."""

import filecmp
import json
from pathlib import Path
from typing import Any

from sparring.workflows.store.store import DIGESTS, LOCK, RECORD

VARYING = {"started", "time", "host", "machine", "nodes", "cluster", "code", "digests"}
"""What records say of when and where a run went, which no two have in common; nor have they keys with `second`."""
UNLIKE = {LOCK, DIGESTS, "ray"}
"""Entries of an artifact that are of its driver: the lock's file, digests of files with times in them, and Ray Train's
notes."""
DIFFERS = "differs"
LUCENE = "lucene_index-"
"""Lucene draws an id for each index, and writes a segment for each thread; rankings show whether it is the same."""


def first_difference(store: Path, other: Path) -> str | None:
    """The first artifact or file of `store` that is not as in `other`, and why; None where nothing differs."""
    here, there = _artifacts(store), _artifacts(other)
    if lost := sorted(there - here):
        return f"{lost[0]}: is not there"
    if more := sorted(here - there):
        return f"{more[0]}: the other run has none"
    for name in sorted(here):
        if found := artifact_difference(store / name, other / name):
            return f"{name}/{found}"
    return None


def _artifacts(store: Path) -> set[str]:
    return {path.name for path in store.iterdir() if path.is_dir() and not path.name.startswith(".")}


def artifact_difference(one: Path, other: Path) -> str | None:
    """The first file of an artifact that differs, and how."""
    if not (one / RECORD).is_file():
        return f"{RECORD}: the artifact is not finished"
    found = files_apart(one, other)
    if not found and not _same(one / RECORD, other / RECORD):
        return f"{RECORD}: {DIFFERS}"
    return next((f"{name}: {how}" for name, how in found.items()), None)


def files_apart(one: Path, other: Path) -> dict[str, str]:
    """The files of an artifact, but for its record, that are not as in the other directory, and how they differ."""
    if one.name.startswith(LUCENE):
        return {}
    here, there = _files(one), _files(other)
    return {
        **dict.fromkeys(sorted(there - here), "is not there"),
        **dict.fromkeys(sorted(here - there), "is left over"),
        **{name: DIFFERS for name in sorted(here & there) if not _same(one / name, other / name)},
    }


def _files(artifact: Path) -> set[str]:
    found = (path.relative_to(artifact) for path in artifact.rglob("*") if path.is_file())
    return {str(name) for name in found if name.parts[0] not in {*UNLIKE, RECORD}}


def _same(one: Path, other: Path) -> bool:
    """Whether two files have the same content; of JSON, without what varies."""
    if one.suffix in (".json", ".jsonl"):
        return _values(one) == _values(other)
    return filecmp.cmp(one, other, shallow=False)


def _values(path: Path) -> list[Any]:
    text = path.read_text()
    return [_constant(json.loads(part)) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _constant(item) for key, item in value.items() if key not in VARYING and "second" not in key}
    return [_constant(item) for item in value] if isinstance(value, list) else value
