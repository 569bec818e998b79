"""Which steps have to run, and their states."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.store.dag import Description, step
from sparring.workflows.store.planner import pending, states
from sparring.workflows.store.store import FAILURE, LOCK, RECORD, Store
from tests.support import steps
from tests.support.running import run
from tests.support.steps import chain


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


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
    assert len(pending([node], store)) == 300


def test_the_cluster_is_no_part_of_the_identity(store: Store) -> None:
    node = step("a", steps.write, text="a")
    assert run([node], store, resolve_machine(Cluster(mode="inline")))
    assert not run([node], store, resolve_machine(Cluster(mode="ray", device="cpu")))
    assert store.record(node)["cluster"]["mode"] == "inline"


def test_only_what_a_wanted_step_needs_runs(store: Store) -> None:
    nodes = chain()
    assert run([nodes["aside"]], store) == ["b", "aside"]
    assert run([nodes["ab"]], store) == ["a", "ab"]


def test_unfinished_inputs_of_a_finished_step_are_not_needed(store: Store) -> None:
    nodes = chain()
    run([nodes["end"]], store)
    for name in ("a", "ab"):
        (store.path(nodes[name]) / RECORD).unlink()
    assert pending([nodes["end"]], store) == []
    assert {node.label: state for node, state in states([nodes["end"]], store)} == {
        "a": "not needed",
        "b": "done",
        "ab": "not needed",
        "end": "done",
    }
    (store.path(nodes["end"]) / RECORD).unlink()
    assert run([nodes["end"]], store) == ["a", "ab", "end"]


def test_a_step_is_partial_if_it_has_files_of_its_own(store: Store) -> None:
    nodes = chain()
    run([nodes["b"]], store)
    store.path(nodes["ab"]).mkdir()
    (store.path(nodes["ab"]) / LOCK).touch()
    (store.path(nodes["ab"]) / FAILURE).touch()
    store.path(nodes["a"]).mkdir()
    (store.path(nodes["a"]) / "heavy").touch()
    assert [(node.label, state) for node, state in states([nodes["end"]], store)] == [
        ("a", "partial"),
        ("b", "done"),
        ("ab", "to do"),
        ("end", "to do"),
    ]


def test_carried_files_that_were_dropped_are_missed_only_by_a_step_that_carries_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the optimizer's state of a training: whoever wants its model alone makes nothing again."""
    description = Description(carried=("heavy",), carries={"before": lambda inputs: inputs["text"] == "all"})
    monkeypatch.setattr(steps.follow, "description", description, raising=False)
    first = step("first", steps.follow, text="a", before=None)
    run([first], store)
    store.drop(first, ["heavy"])
    for text, labels in (("weights", ["next"]), ("all", ["first", "next"])):
        assert [node.label for node in pending([step("next", steps.follow, text=text, before=first)], store)] == labels
    mapping = step("other", steps.mapped, by_name={"x": first})
    assert [node.label for node in pending([mapping], store)] == ["other"]
    store.drop(first, ["text"])
    assert [node.label for node in pending([mapping], store)] == ["first", "other"]


def test_a_step_that_is_wanted_complete_is_pending_if_parts_were_dropped(store: Store) -> None:
    nodes = chain()
    run([nodes["ab"]], store)
    store.drop(nodes["ab"], ["heavy"])
    assert pending([nodes["ab"]], store) == []
    assert [node.label for node in pending([nodes["ab"]], store, complete=True)] == ["ab"]
