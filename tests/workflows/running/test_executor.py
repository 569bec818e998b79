"""The store: what has to run, what a step gets and leaves, and that nothing half-done is taken for finished."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.config import UserError
from tests import steps
from tests.steps import chain
from tests.tiny import ROOT
from workflows import store as stores
from workflows.cluster import Cluster
from workflows.dag import Step, step
from workflows.store import FAILURE, RECORD, StepFailed, Store, execute, states, todo


def run(wanted: list[Step], store: Store, cluster: Any = None) -> list[str]:
    """Run what is to do; the labels of what ran."""
    return [node.label for node in todo(wanted, store) if execute(node, store, cluster, on_wait=print)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


# What has to run


def test_nothing_runs_twice(store: Store) -> None:
    nodes = chain()
    assert run([nodes["end"], nodes["aside"]], store) == ["a", "b", "ab", "end", "aside"]
    assert run([nodes["end"], nodes["aside"]], store) == []
    assert (store.path(nodes["end"]) / "text").read_text() == "a b"
    assert all(steps.calls(store.path(node)) == 1 for node in nodes.values())


def test_steps_are_found_in_lists_and_mappings(store: Store) -> None:
    a = step("a", steps.write, text="a")
    node = step("m", steps.mapped, by_name={"x": a, "y": None})
    assert run([node], store) == ["a", "m"]
    assert (store.path(node) / "text").read_text() == f"x={a.name} y=None"


def test_a_deep_graph(store: Store) -> None:
    node = step("0", steps.write, text="a")
    for number in range(1, 300):
        node = step(str(number), steps.join, parts=[node], options=None)
    assert len(todo([node], store)) == 300


def test_a_cluster_does_not_move_anything(store: Store) -> None:
    node = step("a", steps.write, text="a")
    assert run([node], store, Cluster(mode="inline"))
    assert not run([node], store, Cluster(mode="ray", device="cpu"))
    assert store.record(node)["cluster"]["mode"] == "inline"


def test_only_what_something_wanted_needs_runs(store: Store) -> None:
    nodes = chain()
    assert run([nodes["aside"]], store) == ["b", "aside"]
    assert run([nodes["ab"]], store) == ["a", "ab"]


def test_what_is_finished_shields_what_is_not(store: Store) -> None:
    nodes = chain()
    run([nodes["end"]], store)
    for name in ("a", "ab"):
        (store.path(nodes[name]) / RECORD).unlink()
    assert todo([nodes["end"]], store) == []
    assert {node.label: state for node, state in states([nodes["end"]], store)} == {
        "a": "not needed", "b": "done", "ab": "not needed", "end": "done",
    }  # fmt: skip
    (store.path(nodes["end"]) / RECORD).unlink()
    assert run([nodes["end"]], store) == ["a", "ab", "end"]


def test_states(store: Store) -> None:
    nodes = chain()
    run([nodes["b"]], store)
    store.path(nodes["ab"]).mkdir()
    (store.path(nodes["ab"]) / "lock").touch()
    (store.path(nodes["ab"]) / FAILURE).touch()
    store.path(nodes["a"]).mkdir()
    (store.path(nodes["a"]) / "heavy").touch()
    assert [(node.label, state) for node, state in states([nodes["end"]], store)] == [
        ("a", "partial"), ("b", "done"), ("ab", "to do"), ("end", "to do"),
    ]  # fmt: skip


# Dropped parts


def test_dropped_parts_do_not_bring_anything_back(store: Store) -> None:
    nodes = chain()
    a = step("a", steps.write, text="a", size=1000)
    ab = step("ab", steps.join, parts=[a, nodes["b"]], options=None)
    run([ab], store)
    assert store.drop(a, ["heavy"]) == 1000
    assert store.drop(a, ["heavy", "nothing*"]) == 0
    assert store.record(a)["dropped"] == ["heavy", "nothing*"]
    assert store.done(a)
    assert not store.whole(a)
    assert run([ab, a], store) == []
    assert states([ab], store)[0][1] == "done"


def test_dropped_parts_are_made_again_for_a_step_that_stands_on_them(store: Store) -> None:
    nodes = chain()
    run([nodes["end"]], store)
    store.drop(nodes["a"], ["heavy"])
    more = step("more", steps.join, parts=[nodes["a"]], options=None)
    assert run([nodes["end"], more], store) == ["a", "more"]
    assert store.whole(nodes["a"])


def test_a_drop_that_was_killed_halfway_is_finished_before_the_step_runs_again(store: Store) -> None:
    """Else what is left of a part could be taken for all of it."""
    nodes = chain()
    run([nodes["a"]], store)
    record = store.path(nodes["a"]) / RECORD
    record.write_text(json.dumps({**json.loads(record.read_text()), "dropped": ["calls", "heavy"]}))
    run([step("more", steps.join, parts=[nodes["a"]], options=None)], store)
    assert steps.calls(store.path(nodes["a"])) == 1
    assert store.whole(nodes["a"])


def test_a_step_that_was_dropped_and_then_killed_is_not_finished(store: Store, tmp_path: Path) -> None:
    node = step("f", steps.fail, kind="other", until=str(tmp_path / "go"))
    (tmp_path / "go").touch()
    run([node], store)
    store.drop(node, ["half"])
    (tmp_path / "go").unlink()
    with pytest.raises(StepFailed):
        execute(node, store, None, on_wait=print)
    assert not store.done(node)


# Failures


def test_a_failure_is_one_line_and_says_where_the_story_is(store: Store, tmp_path: Path) -> None:
    node = step("a step", steps.fail, kind="other", until=str(tmp_path / "go"))
    with pytest.raises(StepFailed) as caught:
        run([node], store)
    story = store.path(node) / FAILURE
    assert str(caught.value) == f"step 'a step' failed: the reason (the whole story: {story})"
    assert "Traceback" in story.read_text()
    assert "the long way to it" in story.read_text()
    assert states([node], store)[0][1] == "partial"
    (tmp_path / "go").touch()
    assert run([node], store) == ["a step"]
    assert not story.exists()


def test_an_error_without_words_is_named(store: Store) -> None:
    with pytest.raises(StepFailed, match=r"^step 's' failed: AssertionError \("):
        run([step("s", steps.fail, kind="silent", until="nowhere")], store)


@pytest.mark.parametrize(("kind", "error"), [("user", UserError), ("interrupt", KeyboardInterrupt)])
def test_a_users_mistake_passes_through(store: Store, kind: str, error: type[BaseException]) -> None:
    node = step("u", steps.fail, kind=kind, until="nowhere")
    with pytest.raises(error):
        run([node], store)
    assert not store.done(node)
    assert not (store.path(node) / FAILURE).exists()


def test_what_killed_writers_left_is_swept(store: Store) -> None:
    node = step("a", steps.write, text="a")
    store.path(node).mkdir(parents=True)
    (store.path(node) / ".text.0123abcd").write_text("half")
    run([node], store)
    assert not list(store.path(node).glob(".*"))


def test_a_half_written_record_is_never_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record's file takes its name when it is whole; until then the step is not done."""
    node = step("a", steps.write, text="a")

    def torn(path: Path, value: Any) -> None:
        path.with_name(f".{path.name}.0123abcd").write_text(json.dumps(value)[:20])
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "write_json", torn)
        with pytest.raises(StepFailed, match="full"):
            run([node], store)
    assert not store.done(node)
    assert run([node], store) == ["a"]


def test_the_record_says_what_made_it(store: Store) -> None:
    nodes = chain()
    run([nodes["ab"]], store)
    record = store.record(nodes["ab"])
    assert record["function"] == "tests.steps.join"
    assert record["fingerprint"] == nodes["ab"].fingerprint
    assert record["upstream"] == [nodes["a"].name, nodes["b"].name]
    assert record["inputs"]["options"] == {"number": 1, "names": []}
    assert record["summary"] == {}
    assert store.record(nodes["a"])["summary"] == {"characters": 1}


# Several drivers, and drivers that die

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from tests import steps
from workflows import dag, store
function, inputs, root, kill = json.loads(sys.argv[1])
if kill:  # between the step's last file and its record
    store.write_json = lambda path, value: os.kill(os.getpid(), signal.SIGKILL)
node = dag.step("it", getattr(steps, function), **inputs)
waits = lambda holder: print("waits for", holder, flush=True)
print("ran", store.execute(node, store.Store(Path(root)), None, on_wait=waits))
"""


def driver(node: Step, store: Store, *, kill: bool = False) -> subprocess.Popen[str]:
    """Another process that executes a step."""
    words = json.dumps([node.function.__name__, dict(node.inputs), str(store.root), kill])
    command = [sys.executable, "-c", DRIVER, words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until another process has made a file."""
    while not path.exists():
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_two_drivers_do_a_step_once(store: Store, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    node = step("it", steps.wait, started=str(started), go=str(go))
    with driver(node, store) as first:
        wait_for(started, first)
        with driver(node, store) as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith(f"waits for process {first.pid} on ")
            go.touch()
            assert second.stdout.read() == "ran False\n"
        assert first.stdout is not None
        assert first.stdout.read() == "ran True\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert steps.calls(store.path(node)) == 1


def test_a_killed_driver_frees_its_lock_and_the_next_goes_on(store: Store, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    node = step("it", steps.wait, started=str(started), go=str(go))
    with driver(node, store) as first:
        wait_for(started, first)
        with driver(node, store) as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith("waits for")
            first.kill()
            go.touch()
            assert second.stdout.read() == "ran True\n"
    assert store.done(node)
    assert steps.calls(store.path(node)) == 2


def test_a_driver_killed_in_the_middle_leaves_nothing_half_done(store: Store, tmp_path: Path) -> None:
    node = step("it", steps.die, once=str(tmp_path / "once"))
    with driver(node, store) as first:
        pass
    assert first.returncode == -signal.SIGKILL
    assert not store.done(node)
    assert not (store.path(node) / "whole").exists()
    assert run([node], store) == ["it"]
    assert {path.name for path in store.path(node).iterdir()} == {"calls", "lock", RECORD}


def test_a_driver_killed_before_the_record_has_not_finished(store: Store) -> None:
    node = step("it", steps.write, text="a")
    with driver(node, store, kill=True) as first:
        pass
    assert first.returncode == -signal.SIGKILL
    assert (store.path(node) / "text").exists()
    assert not store.done(node)
    assert run([node], store) == ["it"]
    assert steps.calls(store.path(node)) == 2
