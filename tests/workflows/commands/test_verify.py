"""`verify`: every byte that changed is found, and nothing else is."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from pathlib import Path

import pytest

from sparring.workflows.store import store as stores
from sparring.workflows.store.store import DIGESTS, RECORD
from tests.support import tiny
from tests.support.tiny import Place, Said


@pytest.fixture
def place(played: Place, tmp_path: Path) -> Place:
    return played.copy(tmp_path / "verified")


def test_what_commands_read_or_drop_is_as_it_was(place: Place, tmp_path: Path, said: Said) -> None:
    assert place("search", "barami", "--system", "ranker over retriever 1") == 0
    assert place("report") == 0
    assert place("export", str(tmp_path / "out")) == 0
    assert place("clean") == 0
    said()
    before = tiny.contents(place.folder)
    assert place("verify") == 0
    out, _ = said()
    assert out.startswith(f"{len(tiny.records(place.store))} artifacts, ")
    assert out.endswith("every file is as its step left it\n")
    assert tiny.contents(place.folder) == before


def test_sha256sum_reads_the_digests(place: Place) -> None:
    for name in ("start vectors", "warm retriever", "data"):
        command = ["sha256sum", "--check", "--strict", DIGESTS]
        subprocess.run(command, cwd=place.artifact(name), check=True, capture_output=True)


def test_each_way_to_differ_is_named_and_mended(place: Place, said: Said) -> None:
    """A damaged artifact is removed and made again, as it was; no other is touched."""
    vectors, model = place.artifact("start vectors"), place.artifact("warm retriever")
    digests = (vectors / DIGESTS).read_text()
    changed, lost, more = vectors / "documents-00001.npy", model / "model" / "config.json", vectors / "documents-9.npy"
    data = bytearray(changed.read_bytes())
    data[-3] ^= 1
    changed.write_bytes(data)
    lost.unlink()
    more.write_bytes(b"")
    before = tiny.contents(place.store)
    assert place("verify") == 2
    out, error = said()
    assert sorted(out.splitlines()) == [
        f"  start vectors: {changed} has changed",
        f"  start vectors: {more} was not there",
        f"  warm retriever: {lost} is not there",
    ]
    assert "2 of" in error
    assert re.search(r"this makes them again, in about \d+ s: ", error)
    assert "--until 'start vectors'" in error
    assert "--until 'warm retriever'" in error
    assert tiny.contents(place.store) == before
    assert place("verify", "--remove") == 0
    assert not vectors.exists()
    assert not model.exists()
    for label in ("start vectors", "warm retriever"):
        assert place("run", "--until", label) == 0
    assert (vectors / DIGESTS).read_text() == digests
    said()
    assert place("verify") == 0


def test_a_file_that_cannot_be_read_is_named(place: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, read = place.artifact("start vectors"), stores.digest

    def broken(path: Path) -> str:
        if path.name == "documents-00001.npy" and path.parent == vectors:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(stores, "digest", broken)
    assert place("verify") == 2
    assert said()[0] == f"  start vectors: {vectors}/documents-00001.npy cannot be read: Input/output error\n"


@pytest.mark.parametrize(
    ("name", "text", "mode"),
    [(DIGESTS, None, "is not there"), (DIGESTS, "", "has changed"), (RECORD, "x", "has changed")],
)
def test_digests_and_records_are_verified_too(place: Place, said: Said, name: str, text: str | None, mode: str) -> None:
    vectors = place.artifact("start vectors")
    (vectors / name).unlink()
    if text is not None:
        (vectors / name).write_text(text)
    assert place("verify", "--remove") == 0
    assert said()[0].splitlines()[0] == f"  start vectors: {vectors}/{name} {mode}"
    assert not vectors.exists()


def test_artifacts_without_digests_are_named(place: Place, said: Said) -> None:
    """As an older store has them."""
    vectors = place.artifact("start vectors")
    record = json.loads((vectors / RECORD).read_text())
    del record["digests"]
    (vectors / RECORD).write_text(json.dumps(record))
    assert place("verify") == 0
    first, last = said()[0].splitlines()
    assert first.endswith("no digests were kept when they were finished: start vectors")
    assert last.startswith(f"{len(tiny.records(place.store)) - 1} artifacts")


def test_there_must_be_something(place: Place, said: Said) -> None:
    assert place("clean", "--whole") == 0
    assert place("verify") == 2
    assert said()[1] == "error: no step of this run is finished; there is nothing to verify\n"
