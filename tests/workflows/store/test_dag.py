"""The graph: who a step is, and what it stands on."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import steps
from tests.steps import Options, chain
from workflows.dag import graph, relabelled, step

# Identity


def test_same_inputs_same_place() -> None:
    one, two = chain(), chain()
    assert {name: node.name for name, node in one.items()} == {name: node.name for name, node in two.items()}
    assert one["a"].name.startswith("write-")
    assert len(one["a"].name) == len("write-") + 12
    assert step("a", steps.join, parts=(one["a"],), options={"x": 1, "y": 2}).fingerprint == (
        step("a", steps.join, options={"y": 2, "x": 1}, parts=[one["a"]]).fingerprint
    )


def test_a_fingerprint_stays_what_it_was() -> None:
    """It names what lies in people's stores: a change of how it is made would make every artifact anew."""
    inputs = {"parts": [step("a", steps.write, text="ä")], "options": Options(number=1, names=["x"])}
    assert step("ab", steps.join, **inputs).name == "join-56b08c0a499c"


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"text": "c"}, {"a", "ab", "end"}),
        ({"other": "c"}, {"b", "ab", "end", "aside"}),
        ({"number": 2}, {"ab", "end"}),
    ],
)
def test_a_change_moves_exactly_what_stands_on_it(change: dict[str, Any], moved: set[str]) -> None:
    before, after = chain(), chain(**change)
    assert {name for name in before if before[name].fingerprint != after[name].fingerprint} == moved


def test_a_label_does_not_move_anything() -> None:
    a, same = step("a", steps.write, text="a"), step("another", steps.write, text="a")
    assert a.name == same.name
    assert [node.label for node in graph([a, same])] == ["a"]  # one artifact, under the first of its labels


def test_other_labels_are_the_same_steps() -> None:
    nodes = chain()
    renamed = relabelled(nodes["end"], {nodes["a"].fingerprint: "A", nodes["aside"].fingerprint: "not there"})
    assert [node.label for node in graph([renamed])] == ["A", "b", "ab", "end"]
    assert [node.fingerprint for node in graph([renamed])] == [node.fingerprint for node in graph([nodes["end"]])]
    assert nodes["a"].label == "a"


def test_a_version_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    before = step("newer", steps.newer, text="a").name
    monkeypatch.setattr(steps.newer, "version", 3)
    assert step("newer", steps.newer, text="a").name != before
    monkeypatch.setattr(steps.newer, "version", 1)
    unmarked = step("newer", steps.newer, text="a").name
    monkeypatch.delattr(steps.newer, "version")
    assert step("newer", steps.newer, text="a").name == unmarked


def test_a_default_is_part_of_the_identity() -> None:
    """Else a default that changes would give other results at the same place."""
    assert step("a", steps.write, text="a").name == step("a", steps.write, text="a", size=0).name
    assert step("a", steps.write, text="a").inputs == {"text": "a", "size": 0}


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Path("x"), print, b"x", datetime.date(2024, 1, 1), {1: "x"}, [1, [object()]]]
)
def test_an_input_without_a_stable_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"no stable form|keys must be text"):
        step("x", steps.join, parts=[], options=value)


@pytest.mark.parametrize("inputs", [{}, {"txt": "a"}, {"text": "a", "more": 1}])
def test_a_missing_input_and_a_typo_are_refused(inputs: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        step("a", steps.write, **inputs)


# Order


def test_inputs_come_first_and_once() -> None:
    nodes = chain()
    assert [node.label for node in graph([nodes["end"], nodes["aside"]])] == ["a", "b", "ab", "end", "aside"]
    assert [node.label for node in nodes["ab"].upstream] == ["a", "b"]
