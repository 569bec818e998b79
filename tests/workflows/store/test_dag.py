"""The graph: what identifies a step, and what it depends on."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from sparring.components import modules
from sparring.components.config import UserError
from sparring.components.training.config import TrainConfig
from sparring.components.training.terms import LossTerm
from sparring.workflows.running.executor import resolve_inputs
from sparring.workflows.steps.mine import MineConfig, Sampler, mine
from sparring.workflows.steps.train import train
from sparring.workflows.store import dag
from sparring.workflows.store.dag import Composite, Description, Step, canonical, graph, in_phase, relabelled, step
from sparring.workflows.store.store import Store
from tests.support import steps
from tests.support.steps import Options, chain
from tests.support.toy import CROSS_ENTROPY

# Identity


def test_equal_inputs_give_the_same_name() -> None:
    first, two = chain(), chain()
    assert {name: node.name for name, node in first.items()} == {name: node.name for name, node in two.items()}
    assert first["a"].name.startswith("write-")
    assert len(first["a"].name) == len("write-") + 12
    assert step("a", steps.join, parts=(first["a"],), options={"x": 1, "y": 2}).fingerprint == (
        step("a", steps.join, options={"y": 2, "x": 1}, parts=[first["a"]]).fingerprint
    )


def test_fingerprints_do_not_change_between_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the artifacts in users' stores: if they changed, everything would run again."""
    monkeypatch.setattr(modules, "OURS", ("tests",))  # as if these steps were the repository's own
    inputs = {"parts": [step("a", steps.write, text="ä")], "options": Options(number=1, names=["x"])}
    assert step("ab", steps.join, **inputs).name == "join-93c6a33785a0"


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"text": "c"}, {"a", "ab", "end"}),
        ({"second": "c"}, {"b", "ab", "end", "aside"}),
        ({"number": 2}, {"ab", "end"}),
    ],
)
def test_a_change_moves_exactly_the_steps_that_depend_on_it(change: dict[str, Any], moved: set[str]) -> None:
    before, after = chain(), chain(**change)
    assert {name for name in before if before[name].fingerprint != after[name].fingerprint} == moved


def test_a_label_is_no_part_of_the_identity() -> None:
    a, same = step("a", steps.write, text="a"), step("another", steps.write, text="a")
    assert a.name == same.name
    assert [node.label for node in graph([a, same])] == ["a"]  # one artifact, under the first of its labels


def test_relabelled_steps_are_the_same_steps() -> None:
    nodes = chain()
    renamed = relabelled(nodes["end"], {nodes["a"].fingerprint: "A", nodes["aside"].fingerprint: "not there"})
    assert [node.label for node in graph([renamed])] == ["A", "b", "ab", "end"]
    assert [node.fingerprint for node in graph([renamed])] == [node.fingerprint for node in graph([nodes["end"]])]
    assert nodes["a"].label == "a"


def test_a_version_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = step("newer", steps.newer, text="a").name
    monkeypatch.setattr(steps.newer, "description", Description(version=3))
    assert step("newer", steps.newer, text="a").name != before
    monkeypatch.setattr(steps.newer, "description", Description(version=1))
    unmarked = step("newer", steps.newer, text="a").name
    monkeypatch.delattr(steps.newer, "description")
    assert step("newer", steps.newer, text="a").name == unmarked


def test_an_objectives_version_is_part_of_its_trainings_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of that objective alone: a training of another stays where it is."""
    description = Description(modules=("text",))
    monkeypatch.setattr(steps.newer, "description", description)
    before = {name: step("newer", steps.newer, text=name).name for name in ("ict", "retriever")}
    monkeypatch.setattr(dag, "declared", lambda objective, name: {"ict": 3}.get(objective))
    after = {name: step("newer", steps.newer, text=name).name for name in before}
    assert after["ict"] != before["ict"]
    assert after["retriever"] == before["retriever"]


def test_of_a_description_only_the_version_is_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = step("newer", steps.newer, text="a")
    description = Description(part="data", version=2, models="training", droppable=("x",), carried=("y",))
    monkeypatch.setattr(steps.newer, "description", description)
    after = step("newer", steps.newer, text="a", part="warm-up")
    assert after.name == before.name
    assert "part" not in after.inputs


def test_a_step_belongs_to_its_own_part_else_its_functions_else_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step("a", steps.write, text="a").part == "other"
    monkeypatch.setattr(steps.write, "description", Description(part="data"), raising=False)
    a, warm = step("a", steps.write, text="a"), step("b", steps.write, text="b", part="warm-up")
    assert (a.part, warm.part) == ("data", "warm-up")
    assert relabelled(warm, {warm.fingerprint: "other: b"}).part == "warm-up"


def test_a_phase_is_of_the_innermost_block_and_no_identity() -> None:
    plain = step("a", steps.write, text="a")
    with in_phase("warm-up"):
        with in_phase("collection"):
            inner = step("a", steps.write, text="a")
        outer = step("b", steps.join, parts=[inner], options=None)
    assert (plain.phase, inner.phase, outer.phase) == ("", "collection", "warm-up")
    assert plain.name == inner.name
    variant = relabelled(outer, {}, {inner.fingerprint: "evaluation"})
    assert [node.phase for node in graph([variant])] == ["evaluation", "warm-up"]
    assert variant.name == outer.name


def test_a_default_is_part_of_the_identity() -> None:
    """Otherwise a changed default would give other results under the same name."""
    assert step("a", steps.write, text="a").name == step("a", steps.write, text="a", size=0).name
    assert step("a", steps.write, text="a").inputs == {"text": "a", "size": 0}


LOSS = "def focal(scores, *, gamma: float = 2.0): return scores.student\n"
SAMPLER = "from own_code.weights import WEIGHT\ndef nearest(scores, count, rng, positive): return WEIGHT\n"


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's package with a loss, a sampler that imports from it, an objective and a step."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "own_code"
    folder.mkdir()
    files = {"losses": LOSS, "samplers": SAMPLER, "weights": "WEIGHT = 1\n", "simcse": "views = ('batch',)\n"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def steps_of_own_code() -> dict[str, Step]:
    """A step that names each piece of a user's package, and one that names none."""
    losses = [{"function": "own_code.losses.focal"}]
    inputs: dict[str, Any] = {"rows": None, "dev": None, "data": None, "tokens": None, "start": None, "seed": [1]}
    training = TrainConfig(updates=1, losses=[LossTerm(function=CROSS_ENTROPY)])
    config = MineConfig(draw=Sampler(function="own_code.samplers.nearest"))
    return {
        "loss": step("t", train, objective="retriever", config=TrainConfig(updates=1, losses=losses), **inputs),
        "objective": step("t", train, objective="own_code.simcse", config=training, **inputs),
        "sampler": step(
            "m", mine, data=None, tokens=None, ranking=None, split="train", groups=1, seed=[1], config=config
        ),
        "none": step("t", train, objective="retriever", config=training, **inputs),
    }


@pytest.mark.parametrize(
    ("name", "text", "moved"),
    [
        ("losses", LOSS.replace("return scores", "return -scores"), {"loss"}),
        ("losses", LOSS.replace("2.0", "1.0"), {"loss"}),
        ("simcse", "views = ('batch',)\nTEMPERATURE = 1\n", {"objective"}),
        ("samplers", SAMPLER.replace("return WEIGHT", "return 2"), {"sampler"}),
        ("weights", "WEIGHT = 2\n", {"sampler"}),
        ("losses", f"# The focal loss.\n{LOSS}", set()),
    ],
)
def test_the_source_of_code_outside_the_repository_is_identity(
    own_code: Path, name: str, text: str, moved: set[str]
) -> None:
    """An edited loss would otherwise find the artifact of the one before, and be reported as it."""
    before = steps_of_own_code()
    (own_code / f"{name}.py").write_text(text)
    after = steps_of_own_code()
    assert {key for key in before if before[key].fingerprint != after[key].fingerprint} == moved
    assert before["loss"].code.keys() == {"own_code.losses"}
    assert before["none"].code == {}


def test_a_step_outside_the_repository_is_identified_by_its_source_too(monkeypatch: pytest.MonkeyPatch) -> None:
    node = step("a", steps.write, text="a")
    assert node.code.keys() == {"tests.support.steps"}
    monkeypatch.setattr(modules, "OURS", ("tests",))
    assert step("a", steps.write, text="a").fingerprint != node.fingerprint


def test_own_code_that_is_not_python_is_named(own_code: Path) -> None:
    (own_code / "weights.py").write_text("WEIGHT =\n")
    with pytest.raises(UserError, match=r"own_code/weights\.py:1: not Python"):
        steps_of_own_code()


def test_an_option_left_out_is_the_same_as_its_default() -> None:
    """Otherwise a changed default would give other results under the same name."""
    explicit, unsaid = LossTerm(function=CROSS_ENTROPY, options={"temperature": 1}), LossTerm(function=CROSS_ENTROPY)
    assert canonical(explicit) == canonical(unsaid)
    assert unsaid.options == {"temperature": 1.0}


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Path("x"), print, b"x", datetime.date(2024, 1, 1), {1: "x"}, [1, [object()]]]
)
def test_an_input_without_a_stable_form_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"test_dag\.py, line \d+: the step 'x': .*(no stable form|keys must be text)"):
        step("x", steps.join, parts=[], options=value)


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ({}, "missing: text"),
        ({"txt": "a"}, "missing: text; unknown: txt"),
        ({"text": "a", "more": 1, "other": 2}, "unknown: more, other"),
    ],
)
def test_inputs_that_do_not_fit_are_named_with_the_line_that_gave_them(inputs: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=rf"test_dag\.py, line \d+: the step 'a': write takes .*text.*; {wrong}$"):
        step("a", steps.write, **inputs)


def test_what_a_run_gives_itself_comes_first() -> None:
    def closure(out: Path, data: Path) -> None: ...

    with pytest.raises(
        UserError, match="closure takes out, data first; accepted: `out` and `machine`, which a run gives"
    ):
        step("a", closure, data="x")


def test_a_function_that_takes_more_than_it_names_names_what_is_missing() -> None:
    """An objective's own configs go through a training by any name."""
    inputs = {"objective": "retriever", "rows": None, "dev": None, "data": None, "tokens": None, "start": None}
    with pytest.raises(UserError, match=r"train takes objective, .*, seed, config; missing: seed, config$"):
        step("t", train, **inputs, sed=[1])


# Order


def test_an_input_may_be_read_from_several_steps(tmp_path: Path) -> None:
    store = Store(tmp_path)

    class Pair(Composite):
        def __init__(self, identity: str, *parts: Step) -> None:
            self._identity, self._parts = identity, parts

        @property
        def identity(self) -> str:
            return self._identity

        @property
        def steps(self) -> list[Step]:
            return list(self._parts)

        def resolved(self, store: Store) -> list[Path]:
            return [store.path(node) for node in self._parts]

    a, b = (step(name, steps.write, text=name) for name in "ab")
    joined = step("c", steps.join, parts=Pair("x", a, b), options=None)
    assert joined.upstream == [a, b]
    assert graph([joined]) == [a, b, joined]
    same, *different = (
        step("d", steps.join, parts=Pair(*pair), options=None) for pair in (("x", a, b), ("y", a, b), ("x", a))
    )
    assert same.fingerprint == joined.fingerprint
    assert len({joined.fingerprint, *(node.fingerprint for node in different)}) == 3
    assert resolve_inputs(joined.inputs, store) == {"parts": [store.path(a), store.path(b)], "options": None}


def test_inputs_come_first_and_once() -> None:
    nodes = chain()
    assert [node.label for node in graph([nodes["end"], nodes["aside"]])] == ["a", "b", "ab", "end", "aside"]
    assert [node.label for node in nodes["ab"].upstream] == ["a", "b"]


@Description(workers_read={"rows": ("*.npy", "model/*"), "*": ("*",), "out": ("part-*",)})
def reading(out: Path, machine: Any, *, rows: Step, rest: list[Step], name: str = "") -> None:
    """A step whose workers read most files."""


def test_a_step_leaves_what_only_its_workers_read() -> None:
    rows, first, second = (step(text, steps.write, text=text) for text in "abc")
    node = step("reading", reading, rows=rows, rest=[first, second])
    files = ("a.npy", "model/weights", "names.json", "part-1")
    assert [file for file in files if node.leaves(rows, file)] == ["a.npy", "model/weights"]
    assert [file for file in files if node.leaves(second, file)] == list(files)
    assert [file for file in files if node.leaves(node, file)] == ["part-1"]
    both = step("reading", reading, rows=rows, rest=[rows])
    assert not both.leaves(rows, "names.json")  # one of the inputs needs it here
    assert not step("join", steps.join, parts=[rows], options={}).leaves(rows, "a.npy")
