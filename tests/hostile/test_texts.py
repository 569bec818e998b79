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
from hypothesis import strategies as st

from components.config import UserError, override, read_yaml, yaml_text
from components.data import answers
from components.data.answers import matcher
from components.data.trec import read_qrels, read_ranking
from components.evaluation.measures import per_query
from components.systems import config as systems
from components.systems.documents import InMemory
from tests.support import asked, tiny
from tests.support.asked import DENSE, LEXICAL
from tests.support.hostile import Cases, cases, counted, one_line
from tests.support.mutations import DAMAGES, RAW, Damage, yaml_of
from workflows.distributed.cluster import read_cluster
from workflows.serving import marks as marked
from workflows.serving import running
from workflows.serving.answering import Answering
from workflows.serving.application import application
from workflows.serving.marks import Marks
from workflows.serving.metrics import Metrics
from workflows.stages import experiments

DAMAGED = st.lists(DAMAGES, min_size=1, max_size=3)
RUN = b"".join(b"q%d Q0 d%d %d %g x\n" % (at % 2, at, at // 2 + 1, 9 - at) for at in range(8))
QRELS = b"q0 0 d0 1\nq0 0 d1 0\nq1 0 d3 2\nq1 0 d5 -1\n"
MARKS = b'{"query":"one","doc_id":"d1","relevant":true,"at":"x"}\n{"query":"two","doc_id":"d2","relevant":null}\n'


def raw(whole: bytes, damages: list[Damage]) -> bytes:
    for one in damages:
        whole = RAW.get(one.kind, RAW["json"])(whole, one.at, one.what)
    return whole


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
    assert len(marks.queries().splitlines()) <= len(marks.all())
    if all(len(mark.doc_id.split()) == 1 for mark in marks.all()):
        assert len(marks.qrels().splitlines()) >= len(marks.all())


@pytest.mark.parametrize("size", cases(fast=200))
@pytest.mark.parametrize(
    ("whole", "read"), [(RUN, _ranking), (QRELS, _qrels), (MARKS, _marks)], ids=["ranking", "qrels", "marks"]
)
def test_a_damaged_text_file(size: Cases, whole: bytes, read: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    (tmp_path / "whole.run").write_bytes(RUN)
    (tmp_path / "whole.qrels").write_bytes(QRELS)

    def case(damages: list[Damage]) -> str:
        path.write_bytes(raw(whole, damages))
        try:
            read(path)
        except UserError as error:
            return one_line(error, str(path))
        return "accepted"

    counts = counted(size, case, DAMAGED)
    assert counts["accepted"]
    assert counts["refused"]


@pytest.mark.parametrize("size", cases(fast=100))
def test_a_damaged_config(size: Cases, beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree, path = tiny.ar2(beir, encoder), tmp_path / "c.yaml"

    def case(damages: list[Damage]) -> str:
        path.write_bytes(yaml_of(tree, damages))
        try:
            found = experiments.read(path, [], tmp_path / "runs")
        except UserError as error:
            return one_line(error, str(path), ": ")  # where keys do not go together, it names a key
        again = found.config.model_dump(mode="json")
        path.write_text(yaml_text(again))
        assert read_yaml(path) == again
        return "accepted"

    counts = counted(size, case, DAMAGED)
    assert counts["refused"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("size", cases(fast=200))
def test_a_damaged_profile(size: Cases, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"

    def case(damages: list[Damage]) -> str:
        path.write_bytes(yaml_of({**tiny.INLINE, "hardware": {"cores": 2, "memory_gb": 4, "disk_gb": 5}}, damages))
        try:
            read_cluster(path)
        except UserError as error:
            return one_line(error, str(path))
        return "accepted"

    assert counted(size, case, DAMAGED)["refused"]


@pytest.mark.parametrize("size", cases(fast=200))
def test_values_that_are_set(size: Cases) -> None:
    def case(damages: list[Damage]) -> str:
        text = yaml_of({"a.b": [1, "x"]}, damages).decode("utf-8", "replace").replace(": ", "=", 1)
        try:
            override({"a": {"b": 1}}, [text])
        except UserError as error:
            return one_line(error, "--set")
        return "accepted"

    assert counted(size, case, DAMAGED)["refused"]


@pytest.mark.parametrize("size", cases(fast=100))
def test_a_damaged_system(size: Cases, tmp_path: Path) -> None:
    tree = {"version": 1, "name": "x", "documents": 2, "lexical": {"analysis": {}, "k": 8}}
    rows = b'{"_id":"d1","title":"","text":"one"}\n{"_id":"d2","title":"t","text":""}\n'

    def case(damages: list[Damage]) -> str:
        with tempfile.TemporaryDirectory(dir=tmp_path) as place:
            folder = Path(place)
            (folder / "lucene").mkdir()
            (folder / systems.SYSTEM).write_bytes(raw(json.dumps(tree).encode(), [d for d in damages if d.file % 2]))
            (folder / systems.DOCUMENTS).write_bytes(raw(rows, [d for d in damages if not d.file % 2]))
            try:
                config = systems.read(folder)
                found = InMemory.of_folder(folder / systems.DOCUMENTS, config.documents)
            except UserError as error:
                return one_line(error, place)
            assert all((folder / part).resolve().is_relative_to(folder) for part in config.parts)
            assert len(set(found.sorted.to_pylist())) == config.documents
            return "accepted"

    assert counted(size, case, DAMAGED)["refused"]


@pytest.mark.parametrize("size", cases(fast=200))
def test_damaged_questions_and_marks(size: Cases, tmp_path: Path) -> None:
    near, _ = asked.system("near", dense=DENSE)
    words, _ = asked.system("words", lexical=LEXICAL)
    answering = Answering({"near": near, "words": words}, near.documents, "near", {}, Metrics())
    service = application(answering, Marks(tmp_path / "marks.jsonl"), about={}, token=None, loopback=True)
    bodies = {
        "/search": {"queries": ["one", "two"], "k": 3, "system": "near"},
        "/marks": {"query": "one", "doc_id": "d03", "relevant": True},
    }
    loop = asyncio.new_event_loop()

    def case(path: str, damages: list[Damage]) -> str:
        body = raw(json.dumps(bodies[path]).encode(), damages)
        said = loop.run_until_complete(asked.request(service, "POST", path, body=body))
        assert said.status in (200, 400, 404, 413, 422), said
        assert (said.status == 200) != ("detail" in said.json)
        return "accepted" if said.status == 200 else "refused"

    counts = counted(size, case, st.sampled_from(list(bodies)), DAMAGED)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert counts["accepted"]
    assert counts["refused"]
    assert Marks(tmp_path / "marks.jsonl").all()


@pytest.mark.parametrize("size", cases(fast=200))
def test_a_damaged_note_of_a_running_service(size: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place but this machine is asked: the token would go there."""
    monkeypatch.setenv(running.TOKEN, "a-token-of-sixteen-characters")
    tree = {"url": "http://127.0.0.1:9", "pid": 1, "identity": "x", "systems": {"ranker": "r"}, "limits": dict(LIMITS)}

    def refuse(url: str, *others: Any) -> Any:
        assert urllib.parse.urlsplit(url).hostname == "127.0.0.1", url
        raise OSError

    monkeypatch.setattr(running, "_asked", refuse)

    def case(damages: list[Damage]) -> str:
        (tmp_path / running.FILE).write_bytes(raw(json.dumps(tree).encode(), damages))
        assert running.asked(tmp_path, "x", "ranker", "query", 3) is None
        return "refused"

    assert counted(size, case, DAMAGED)["refused"]


LIMITS = {"k": 100, "query_characters": 4000}


def test_a_note_that_names_another_machine_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = list[str]()
    monkeypatch.setattr(running, "_asked", lambda url, *others: asked_for.append(url) or {})
    for host in ("localhost", "127.0.0.1", "192.0.2.7"):
        tree = {"url": f"http://{host}:9", "pid": os.getpid(), "identity": "x", "systems": {"ranker": "r"}}
        (tmp_path / running.FILE).write_text(json.dumps({**tree, "limits": LIMITS}))
        assert running.asked(tmp_path, "x", "ranker", "query", 3) is None
    assert asked_for == ["http://localhost:9/health", "http://127.0.0.1:9/health"]


# Known attacks


def bomb(first: str, next: str) -> str:
    """Keys of which each holds nine times the one before."""
    lines = [f"a{n}: &a{n} " + next.format(", ".join([f"*a{n - 1}"] * 9)) for n in range(1, 12)]
    return "\n".join([f"a0: &a0 {first}", *lines])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]", "an alias that holds itself"),
        ("a: &a {b: *a}", "an alias that holds itself"),
        (bomb("[x, x]", "[{}]"), "more than 100,000 values"),
        (bomb("{x: 1}", "{{<<: [{}]}}"), "more than 100,000 values"),
        ("a: !!python/object/apply:os.system [touch x]", "could not determine a constructor for the tag"),
        ("a: !!binary x", ""),
        ("? {a: b}\n: c", "found unhashable key"),
    ],
)  # fmt: skip
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
    with pytest.raises(UserError, match=r"answer '\(a\|aa\)\+\$': searching one text takes more than"):
        matcher(["(a|aa)+$"], "regex")("a" * 60 + "b")


def test_a_part_outside_of_a_systems_folder_is_refused(tmp_path: Path) -> None:
    for index in ("../lucene", "/etc", "link"):
        folder = tmp_path / "system"
        folder.mkdir(exist_ok=True)
        (folder / systems.DOCUMENTS).touch()
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to("/etc")
        tree = {"version": 1, "name": "x", "documents": 2, "lexical": {"analysis": {}, "k": 8, "index": index}}
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
