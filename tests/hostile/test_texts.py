"""Damaged configs, profiles, TREC files, marks, systems and questions: read soundly, or refused in one line."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparring.components.config import UserError
from sparring.components.data import answers
from sparring.components.data.answers import matcher
from sparring.components.evaluation.measures import per_query
from sparring.components.sources.trec import read_qrels, read_ranking
from sparring.components.systems import config as systems
from sparring.components.systems.documents import InMemory
from sparring.components.yaml_files import override, read_yaml, yaml_text
from sparring.workflows.distributed.cluster import read_cluster
from sparring.workflows.experiments import loading
from sparring.workflows.serving import marks as marked
from sparring.workflows.serving import running
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.application import application
from sparring.workflows.serving.marks import Marks, qrels, queries
from sparring.workflows.serving.metrics import Metrics
from tests.support import asgi, tiny
from tests.support.asgi import DENSE, LEXICAL
from tests.support.formats import MARKS, QRELS, RUN
from tests.support.hostile import Cases, cases, counted, one_line
from tests.support.mutations import Damage, damages, raw, yaml_of


def _ranking(path: Path) -> None:
    table = read_ranking(path)
    rows = table.to_pylist()
    assert len({(row["query_id"], row["doc_id"]) for row in rows}) == len(rows)
    assert all(abs(row["score"]) < float("inf") and row["rank"] >= 1 for row in rows)
    per_query(table, read_qrels(path.with_name("whole.qrels")), ["RR@10", "nDCG@10"])


def _qrels(path: Path) -> None:
    table = read_qrels(path)
    rows = table.to_pylist()
    assert len({(row["query_id"], row["doc_id"]) for row in rows}) == len(rows)
    per_query(read_ranking(path.with_name("whole.run")), table, ["RR@10", "nDCG@10"])


def _marks(path: Path) -> None:
    for mark in marked.read(path):
        assert mark.query.strip()
        assert mark.doc_id
    marks = Marks(path)
    assert len(queries(marks.all()).splitlines()) <= len(marks.all())
    if all(len(mark.doc_id.split()) == 1 for mark in marks.all()):
        assert len(qrels(marks.all()).splitlines()) >= len(marks.all())


@pytest.mark.parametrize("size", cases(fast=200))
@pytest.mark.parametrize(
    ("whole", "read"), [(RUN, _ranking), (QRELS, _qrels), (MARKS, _marks)], ids=["ranking", "qrels", "marks"]
)
def test_a_damaged_text_file(size: Cases, whole: bytes, read: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    (tmp_path / "whole.run").write_bytes(RUN)
    (tmp_path / "whole.qrels").write_bytes(QRELS)

    def case(done: list[Damage]) -> str:
        path.write_bytes(raw(whole, done))
        try:
            read(path)
        except UserError as error:
            return one_line(error, str(path))
        return "accepted"

    counts = counted(size, case, damages)
    assert counts["accepted"]
    assert counts["refused"]


@pytest.mark.parametrize("size", cases(fast=100))
def test_a_damaged_config(size: Cases, beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree, path = tiny.ar2(beir, encoder), tmp_path / "c.yaml"

    def case(done: list[Damage]) -> str:
        path.write_bytes(yaml_of(tree, done))
        try:
            plan = loading.read(path, [], tmp_path / "runs")
        except UserError as error:
            return one_line(error, str(path), ": ")  # where keys do not go together, it names a key
        again = plan.config.model_dump(mode="json")
        path.write_text(yaml_text(again))
        assert read_yaml(path) == again
        return "accepted"

    counts = counted(size, case, damages)
    assert counts["refused"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("size", cases(fast=200))
def test_a_damaged_profile(size: Cases, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"

    def case(done: list[Damage]) -> str:
        path.write_bytes(yaml_of({**tiny.INLINE, "hardware": {"cores": 2, "memory_gb": 4, "disk_gb": 5}}, done))
        try:
            read_cluster(path)
        except UserError as error:
            return one_line(error, str(path))
        return "accepted"

    assert counted(size, case, damages)["refused"]


@pytest.mark.parametrize("size", cases(fast=200))
def test_values_that_are_set(size: Cases) -> None:
    def case(key: str, done: list[Damage]) -> str:
        text = yaml_of({key: [1, "x"]}, done).decode("utf-8", "replace").replace(": ", "=", 1)
        try:
            override({"a": {"b": 1}, "c": [{"d": 1}]}, [text])
        except UserError as error:
            return one_line(error, "--set")
        return "accepted"

    keys = ("a.b", "c.0.d", "c.1", "c.\u00b2", f"c.{'9' * 5_000}")
    assert counted(size, case, lambda random: random.choice(keys), damages)["refused"]


@pytest.mark.parametrize("size", cases(fast=100))
def test_a_damaged_system(size: Cases, tmp_path: Path) -> None:
    tree = {"version": 1, "name": "x", "documents": 2, "lexical": {"analysis": {}, "k": 8}}
    rows = b'{"_id":"d1","title":"","text":"one"}\n{"_id":"d2","title":"t","text":""}\n'

    def case(done: list[Damage]) -> str:
        with tempfile.TemporaryDirectory(dir=tmp_path) as place:
            folder = Path(place)
            (folder / "lucene").mkdir()
            (folder / systems.SYSTEM).write_bytes(raw(json.dumps(tree).encode(), [d for d in done if d.file % 2]))
            (folder / systems.DOCUMENTS).write_bytes(raw(rows, [d for d in done if not d.file % 2]))
            try:
                config = systems.read(folder)
                documents = InMemory.of_folder(folder / systems.DOCUMENTS, config.documents)
            except UserError as error:
                return one_line(error, place)
            assert all((folder / part).resolve().is_relative_to(folder) for part in config.parts)
            assert len(set(documents.sorted.to_pylist())) == config.documents
            return "accepted"

    assert counted(size, case, damages)["refused"]


REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/search", {"queries": ["one", "two"], "k": 3, "system": "near"}),
    ("POST", "/marks", {"query": "one", "doc_id": "d03", "relevant": True}),
    ("GET", "/search?q=one&k=3&system=words", None),
    *(
        ("GET", path, None)
        for path in (
            "/",
            "/systems",
            "/marks",
            "/marks/qrels",
            "/marks/queries",
            "/health",
            "/metrics",
            "/openapi.json",
        )
    ),
]
TOKEN = "a-token-of-sixteen-characters"
HEADERS = {
    "authorization": f"Bearer {TOKEN}",
    "content-type": "application/json",
    "content-length": "60",
    "host": "localhost:8000",
    "accept": "*/*",
    "accept-encoding": "gzip",
}


@pytest.mark.parametrize("size", cases(fast=300))
def test_damaged_requests(size: Cases, tmp_path: Path) -> None:
    """Body, address, method and head: each request is answered, or refused with a status below 500."""
    near, _ = asgi.system("near", dense=DENSE)
    words, _ = asgi.system("words", lexical=LEXICAL)
    answering = Answering({"near": near, "words": words}, near.documents, "near", {}, Metrics(), Summary("hostile"))
    service = application(answering, Marks(tmp_path / "marks.jsonl"), facts={}, token=TOKEN, loopback=True)
    loop = asyncio.new_event_loop()

    def case(asking: tuple[str, str, Any], done: list[Damage]) -> str:
        method, address, tree = asking
        body = b"" if tree is None else json.dumps(tree).encode()
        headers = {"authorization": HEADERS["authorization"]}
        for damage in done:
            part = ("body", "address", "head", "method")[damage.file % 4]
            if part == "body" and tree is not None:
                body = raw(body, [damage])
            elif part == "head":
                name = list(HEADERS)[damage.choice % len(HEADERS)]
                headers[name] = raw(HEADERS[name].encode(), [damage]).decode("latin-1")
            elif part == "method":
                method = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "get", "", "\x00")[damage.position % 9]
            else:
                address = raw(address.encode(), [damage]).decode("utf-8", "replace")
        response = loop.run_until_complete(asgi.request(service, method, address, body=body, headers=headers))
        assert response.status in (200, 307, 400, 401, 403, 404, 405, 413, 422), response
        assert response.status < 400 or not response.body or "detail" in response.json
        return "accepted" if response.status == 200 else "refused"

    counts = counted(size, case, lambda random: random.choice(REQUESTS), damages)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert counts["accepted"]
    assert counts["refused"]
    assert Marks(tmp_path / "marks.jsonl").all()


def test_a_note_that_is_nested_too_deeply_is_none(tmp_path: Path) -> None:
    (tmp_path / running.FILE).write_text("[" * 100_000)
    assert running.ask(tmp_path, "x", "r", "query", 3) is None


@pytest.mark.parametrize("key", ["_id", "title", "text"])
def test_a_systems_documents_are_utf8(key: str, tmp_path: Path) -> None:
    path = tmp_path / systems.DOCUMENTS
    path.write_bytes(json.dumps({"_id": "a", "title": "b", "text": "c", key: "??"}).encode().replace(b"??", b"\xb0"))
    with pytest.raises(UserError, match=f"{path}: not a JSON object a line: .*UTF8"):
        InMemory.of_folder(path, 1)


@pytest.mark.parametrize("line", ["[]", "null", '"x"', "{}", "9" * 5_000])
def test_a_line_that_is_no_mark_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_bytes(MARKS + line.encode() + b"\n")
    with pytest.raises(UserError, match=f"{path}:3: not a mark; accepted: "):
        Marks(path)


@pytest.mark.parametrize("length", ["\u00b2", "9" * 5_000, "-1", "0x10", ""])
def test_a_length_that_is_none_is_refused(length: str, tmp_path: Path) -> None:
    near, _ = asgi.system("near", dense=DENSE)
    answering = Answering({"near": near}, near.documents, "near", {}, Metrics(), Summary("hostile"))
    service = application(answering, Marks(tmp_path / "marks.jsonl"), facts={}, token=None, loopback=True)
    assert asgi.get(service, "/systems", **{"content-length": length}).status == 413


@pytest.mark.parametrize("size", cases(fast=200))
def test_a_damaged_note_of_a_running_service(size: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place but this machine is asked: the token would go there."""
    monkeypatch.setenv(running.TOKEN, "a-token-of-sixteen-characters")
    tree = {"url": "http://127.0.0.1:9", "pid": 1, "identity": "x", "systems": ["r"], "limits": dict(LIMITS)}

    def refuse(url: str, *arguments: Any) -> Any:
        assert urllib.parse.urlsplit(url).hostname == "127.0.0.1", url
        raise OSError

    monkeypatch.setattr(running, "_request", refuse)

    def case(done: list[Damage]) -> str:
        (tmp_path / running.FILE).write_bytes(raw(json.dumps(tree).encode(), done))
        assert running.ask(tmp_path, "x", "r", "query", 3) is None
        return "refused"

    assert counted(size, case, damages)["refused"]


LIMITS = {"k": 100, "query_characters": 4000}


def test_a_note_that_names_another_machine_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = list[str]()
    monkeypatch.setattr(running, "_request", lambda url, *arguments: asked_for.append(url) or {})
    for host in ("localhost", "127.0.0.1", "192.0.2.7"):
        tree = {"url": f"http://{host}:9", "pid": os.getpid(), "identity": "x", "systems": ["r"]}
        (tmp_path / running.FILE).write_text(json.dumps({**tree, "limits": LIMITS}))
        assert running.ask(tmp_path, "x", "r", "query", 3) is None
    assert asked_for == ["http://localhost:9/health", "http://127.0.0.1:9/health"]


# Known attacks


def bomb(first: str, next: str) -> str:
    """Keys of which each holds nine times the one before."""
    lines = [f"a{n}: &a{n} " + next.format(", ".join([f"*a{n - 1}"] * 9)) for n in range(1, 12)]
    return "\n".join([f"a0: &a0 {first}", *lines])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]", "an alias that contains itself"),
        ("a: &a {b: *a}", "an alias that contains itself"),
        (bomb("[x, x]", "[{}]"), "more than 100,000 values"),
        (bomb("{x: 1}", "{{<<: [{}]}}"), "more than 100,000 values"),
        ("a: !!python/object/apply:os.system [touch x]", "could not determine a constructor for the tag"),
        ("a: !!binary x", ""),
        ("? {a: b}\n: c", "found unhashable key"),
    ],
)
def test_yaml_that_grows_or_runs(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    one_line(caught.value, str(path))
    assert says in str(caught.value)


def test_aliases_that_hold_what_they_name_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_an_answer_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SECONDS", 0.05)
    with pytest.raises(UserError, match=r"the answer '\(a\|aa\)\+\$' takes more than"):
        matcher(["(a|aa)+$"], "regex")("a" * 60 + "b")


def test_a_part_outside_of_a_systems_folder_is_refused(tmp_path: Path) -> None:
    for index in ("../lucene", "/etc", "link"):
        folder = tmp_path / "system"
        folder.mkdir(exist_ok=True)
        (folder / systems.DOCUMENTS).touch()
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to("/etc")
        stage = {"kind": "lexical", "analysis": {}, "k": 8, "index": index}
        tree = {"version": systems.VERSION, "name": "x", "documents": 2, "stages": {"lexical": stage}}
        (folder / systems.SYSTEM).write_text(json.dumps(tree))
        with pytest.raises(UserError, match="is outside of the folder"):
            systems.read(folder)


def test_a_config_that_is_refused_changes_nothing(beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    for text in ("a: &a [*a]", 'recipe: "\\ud800"', yaml.safe_dump({**tiny.ar2(beir, encoder), "k": -(2**80)})):
        place.config.write_text(text)
        for command in ("plan", "run", "show", "clean"):
            assert place(command) == 2
            out, err = said()
            assert out == ""
            assert err.startswith("error: ")
            assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}
