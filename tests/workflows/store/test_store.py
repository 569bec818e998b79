"""The store: what a record says of dropped parts, and that artifacts without them are made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.workflows.running.executor import execute
from sparring.workflows.store.dag import StepFailed, step
from sparring.workflows.store.planner import states
from sparring.workflows.store.store import RECORD, Artifact, Store
from tests.support import steps
from tests.support.running import run
from tests.support.steps import chain


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_step_with_dropped_parts_does_not_run_again(store: Store) -> None:
    nodes = chain()
    a = step("a", steps.write, text="a", size=1000)
    ab = step("ab", steps.join, parts=[a, nodes["b"]], options=None)
    run([ab], store)
    assert store.drop(a, ["heavy"]) == 1000
    assert store.drop(a, ["heavy", "nothing*"]) == 0
    assert store.record(a)["dropped"] == ["heavy", "nothing*"]
    assert store.is_done(a)
    assert not store.is_complete(a)
    assert run([ab, a], store) == []
    assert states([ab], store)[0][1] == "done"


def test_what_another_command_removes_meanwhile_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a = chain()["a"]
    run([a], store)
    listed = store._files

    def and_then_gone(*asked: Any) -> list[Path]:
        files = listed(*asked)
        shutil.rmtree(store.path(a))
        return files

    monkeypatch.setattr(store, "_files", and_then_gone)
    assert store.sizes([a]) == [0]
    monkeypatch.undo()
    run([a], store)
    monkeypatch.setattr(store, "_files", and_then_gone)
    assert store.remove(a) == 0
    monkeypatch.undo()
    assert store.drop(a, ["heavy"]) == 0


def test_a_step_with_dropped_parts_runs_again_for_a_step_that_reads_it(store: Store) -> None:
    nodes = chain()
    run([nodes["end"]], store)
    store.drop(nodes["a"], ["heavy"])
    more = step("more", steps.join, parts=[nodes["a"]], options=None)
    assert run([nodes["end"], more], store) == ["a", "more"]
    assert store.is_complete(nodes["a"])


def test_a_drop_that_was_killed_is_finished_before_the_step_runs_again(store: Store) -> None:
    """Otherwise the rest of a part could be taken for the whole part."""
    nodes = chain()
    run([nodes["a"]], store)
    record = store.path(nodes["a"]) / RECORD
    record.write_text(json.dumps({**json.loads(record.read_text()), "dropped": ["calls", "heavy"]}))
    run([step("more", steps.join, parts=[nodes["a"]], options=None)], store)
    assert steps.calls(store.path(nodes["a"])) == 1
    assert store.is_complete(nodes["a"])


def test_a_step_with_dropped_parts_that_fails_when_run_again_is_not_done(store: Store, tmp_path: Path) -> None:
    node = step("f", steps.fail, kind="other", until=str(tmp_path / "go"))
    (tmp_path / "go").touch()
    run([node], store)
    store.drop(node, ["half"])
    (tmp_path / "go").unlink()
    with pytest.raises(StepFailed):
        execute(node, store, None, on_wait=print)
    assert not store.is_done(node)


def test_an_artifact_is_known_by_its_name_alone(store: Store) -> None:
    node = step("a", steps.write, text="a")
    run([node], store)
    assert store.artifact(node.name) == Artifact(node.name, "a")
    assert store.artifact("train-0123456789ab") == Artifact("train-0123456789ab", "train-0123456789ab")
    with pytest.raises(
        UserError, match=r"'\.\./x-0123456789ab': not the name of an artifact; accepted: a name such as "
    ):
        store.artifact("../x-0123456789ab")
