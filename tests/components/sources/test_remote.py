"""Source data at URLs: copied once, again where it changed, and read like files of this machine."""

import json
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest

from sparring.components.sources import remote
from sparring.components.sources.base import sought
from tests.support import bucket
from tests.support.sources import beir, source


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(remote.VARIABLE, str(tmp_path / "cache"))
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be another process, which has copied nothing yet."""
    monkeypatch.setattr(remote, "_copies", {})


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Any]:
    """A collection in fsspec's memory."""
    system = fsspec.filesystem("memory")
    system.put(str(beir(tmp_path / "there")), "/bucket/team", recursive=True)
    yield system
    system.rm("/bucket", recursive=True)


URL = "memory://bucket/team"


def read(path: str) -> list[Any]:
    """The records of a collection."""
    declared = source(format="beir", path=path, splits=["test"])
    assert declared.missing() == []
    return [*declared.read_documents(), *declared.read_queries(), *declared.read_qrels()]


def places_apart(records: list[Any]) -> list[Any]:
    return [record._replace(place="") for record in records]


def test_a_collection_at_a_url_is_the_same_as_on_disk(memory: Any, tmp_path: Path) -> None:
    assert places_apart(read(URL)) == places_apart(read(str(tmp_path / "there")))


def test_only_what_changed_is_copied_again(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.stat().st_ino for path in remote.local_path(URL).rglob("*") if path.is_file()}
    memory.rm("/bucket/team/queries.jsonl")
    memory.pipe("/bucket/team/corpus.jsonl", json.dumps({"_id": "new", "text": "text"}).encode())
    assert {path.name for path in remote.local_path(URL).rglob("*") if path.is_file()} == set(before)  # once a process
    forget(monkeypatch)
    after = {path.name: path.stat().st_ino for path in remote.local_path(URL).rglob("*") if path.is_file()}
    assert set(after) == set(before) - {"queries.jsonl"}
    assert {name for name in after if after[name] != before[name]} == {"corpus.jsonl"}
    assert "new" in (remote.local_path(URL) / "corpus.jsonl").read_text()


def test_an_interrupted_copy_is_never_read_and_goes_on(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fetched = type(memory).get_file, []

    def broken(system: Any, path: str, to: str, **options: Any) -> None:
        if len(fetched) == 1:
            raise ConnectionError("the line is dead")
        fetched.append(path)
        real(system, path, to, **options)

    monkeypatch.setattr(type(memory), "get_file", broken)
    declared = source(format="beir", path=URL, splits=["test"])
    missing = declared.missing()
    assert len(missing) == 3
    assert sought(missing) == f"{URL}: cannot be read: the line is dead"

    def whole(system: Any, path: str, to: str, **options: Any) -> None:
        fetched.append(path)
        real(system, path, to, **options)

    monkeypatch.setattr(type(memory), "get_file", whole)
    forget(monkeypatch)
    assert declared.missing() == []
    assert len(fetched) == len(set(fetched)) == 4


def test_a_name_that_leads_out_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "find", lambda *_, **__: {"/bucket/team/../evil": {"size": 1}})
        remote.copied(URL)
    assert "'../evil' leads out of the folder" in remote.copied(URL).problem


@pytest.mark.parametrize("url", ["nosuch://host/folder", "memory://bucket/absent"])
def test_what_cannot_be_read_is_said(url: str) -> None:
    missing = source(format="beir", path=url, splits=["test"]).missing()
    assert sought(missing).startswith(f"{url}: cannot be read: ")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server with the collection, and with an archive of it."""
    folder = beir(tmp_path / "web" / "team")
    with zipfile.ZipFile(tmp_path / "web" / "team.zip", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "web"))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "web")))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_file_and_an_archive_on_the_web(web: str, tmp_path: Path) -> None:
    file = remote.local_path(f"{web}/team/corpus.jsonl")
    assert file.name == "corpus.jsonl"
    assert file.read_bytes() == (tmp_path / "web" / "team" / "corpus.jsonl").read_bytes()
    assert places_apart(read(f"zip://team::{web}/team.zip")) == places_apart(read(str(tmp_path / "web" / "team")))


def test_a_bucket(tmp_path: Path) -> None:
    with bucket.serving():
        bucket.files().put(str(beir(tmp_path / "there")), f"{bucket.BUCKET}/team", recursive=True)
        assert places_apart(read(f"s3://{bucket.BUCKET}/team")) == places_apart(read(str(tmp_path / "there")))
