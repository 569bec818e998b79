"""Running steps one after another and at once: when a step may start, and what a failure leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.running.refusals import select_shared_checks
from sparring.workflows.running.runner import _chain_lengths, _run_parallel, run_steps
from sparring.workflows.store.dag import Description, Step, StepFailed, graph, in_phase, step
from sparring.workflows.store.planner import pending
from sparring.workflows.store.progress import PROGRESS, Progress, read_progress
from sparring.workflows.store.store import WRITTEN, Store
from tests.support import steps
from tests.support.errors import refused

INLINE = resolve_machine(Cluster(mode="inline", device="cpu"))


def at_once(steps: int) -> Machine:
    """The machine of a run of so many steps at once."""
    return resolve_machine(Cluster(parallel_steps=steps, device="cpu"))


TWO = at_once(2)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """These steps do not use Ray."""
    monkeypatch.setattr("sparring.workflows.running.runner.ray_session", lambda cluster: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def texts(*names: str) -> list[Step]:
    return [step(name, steps.write, text=name) for name in names]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_each_step_runs_once_inputs_first(store: Store, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c, d = texts("a", "b", "c", "d")
    ab, cd = (step(f"{x.label}{y.label}", steps.join, parts=[x, y], options=None) for x, y in ((a, b), (c, d)))
    wanted = step("all", steps.join, parts=[ab, cd], options=None)
    waiting = pending([wanted], store)
    executed = run_steps(waiting, store, at_once(most))
    assert executed == {node.fingerprint for node in graph([wanted])}
    assert (store.path(wanted) / "text").read_text() == "a b c d"
    assert {steps.calls(store.path(node)) for node in graph([wanted])} == {1}
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.partition("]")[0] for line in lines) == [f"[{i}/7" for i in range(1, 8)]
    assert lines[-1].startswith("[7/7] all: done in ")


def test_what_reads_nothing_of_the_run_comes_first(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake in the last of several collections is known before anything is made of the first."""
    a, b = texts("a", "b")
    nodes = [step(name, steps.join, parts=[part], options=None) for name, part in (("of a", a), ("of b", b))]
    run_steps(pending(nodes, store), store, at_once(1))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": done")[0] for line in lines] == ["[1/4] a", "[2/4] b", "[3/4] of a", "[4/4] of b"]


def test_independent_steps_run_at_once(store: Store, tmp_path: Path) -> None:
    """Each waits, as it would for Ray, until the other has started."""
    first, second = tmp_path / "one", tmp_path / "other"
    nodes = [
        step("a", meets, marker=str(first), peer=str(second)),
        step("b", meets, marker=str(second), peer=str(first)),
    ]
    assert len(run_steps(nodes, store, TWO)) == 2


def meets(out: Path, machine: Any, *, marker: str, peer: str) -> None:
    """Hold no processors, and wait until the other step has started too."""
    from sparring.workflows.distributed.resources import Resources, reserve

    with reserve(Resources(), Resources()):
        Path(marker).touch()
        while not Path(peer).exists():
            time.sleep(0.01)


def test_the_longest_chain_comes_first() -> None:
    a, b, x = texts("a", "b", "x")
    c = step("c", steps.join, parts=[b], options=None)
    d = step("d", steps.join, parts=[a, c], options=None)
    chains = _chain_lengths(graph([x, d]))
    assert [chains[node.fingerprint] for node in (a, b, c, d, x)] == [2, 3, 2, 1, 1]


def test_of_steps_that_run_at_once_those_somebody_waits_for_come_first() -> None:
    a, b, measures = texts("a", "b", "measures")
    chain = step("c", steps.join, parts=[b], options=None)
    began: list[str] = []

    def run_step(title: str, node: Step) -> bool:
        began.append(node.label)
        return True

    for first, order in (([], ["b", "a", "measures", "c"]), ([measures.fingerprint], ["measures", "b", "a", "c"])):
        began.clear()
        _run_parallel([a, b, measures, chain], 1, run_step, first)
        assert began == order


def test_a_step_that_measures_time_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = texts("a", "b")
    monkeypatch.setattr(steps.join, "description", Description(alone=True), raising=False)
    alone = [step(name, steps.join, parts=parts, options=None) for name, parts in (("c", []), ("d", [b]), ("e", [a]))]
    after = step("f", steps.write, text="f")
    running, seen, lock = set[str](), dict[str, set[str]](), threading.Lock()

    def run_step(title: str, node: Step) -> bool:
        with lock:
            running.add(node.label)
            seen[node.label] = set(running)
        time.sleep(0.01)
        with lock:
            for label in running:
                seen[label] |= running
            running.remove(node.label)
        return True

    assert len(_run_parallel([*alone, a, b, after], 3, run_step, [])) == 6
    assert [seen[label] for label in "cde"] == [{"c"}, {"d"}, {"e"}]


def test_a_title_has_the_phase_and_lines_stand_below_the_step_that_they_are_of(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_phase("warm-up"):
        (node,) = texts("a")
    run_steps([node], store, INLINE, on_done=lambda node: [f"  {node.label}  RR@10 .500"])
    done, score = capsys.readouterr().err.splitlines()
    assert done.startswith("[1/1 warm-up] a: done in ")
    assert score == "  a  RR@10 .500"


@pytest.mark.parametrize("most", [1, 2])
def test_after_a_failure_no_step_starts(store: Store, tmp_path: Path, most: int) -> None:
    """A step that was running beside it is finished."""
    bad = step("bad", steps.fail, kind="other", until=str(tmp_path / "mended"))
    good, late = texts("good", "late")
    after = step("after", steps.join, parts=[bad], options=None)
    with pytest.raises(StepFailed, match="step 'bad' failed: the reason"):
        run_steps([bad, good, late, after], store, at_once(most))
    assert [store.is_done(node) for node in (good, late, after)] == [most == 2, False, False]
    (tmp_path / "mended").touch()
    nodes = pending([bad, good, late], store)
    assert run_steps(nodes, store, at_once(most)) == {node.fingerprint for node in nodes}


def test_a_users_mistake_is_raised_as_it_is(store: Store, tmp_path: Path) -> None:
    bad = step("bad", steps.fail, kind="user", until=str(tmp_path / "never"))
    with pytest.raises(UserError, match="k: 9 documents"):
        run_steps([bad], store, TWO)


@pytest.mark.parametrize("most", [1, 2])
def test_what_a_step_refuses_is_found_before_what_else_it_needs_is_made(store: Store, most: int) -> None:
    (source,) = texts("given")
    long = step("long", steps.join, parts=[source], options=None)
    after = step("after", steps.join, parts=[long], options=None)
    bad = step("bad", steps.refuse, before=source, after=after, most=4)
    machine = at_once(most)
    with pytest.raises(UserError, match="bad: 5 characters; accepted: 4"):
        run_steps(pending([bad], store), store, machine)
    assert [store.is_done(node) for node in (source, long, after)] == [True, False, False]
    with refused("before", "out-of-range"):  # nothing is done first
        run_steps(pending([bad], store), store, machine)
    assert not store.is_done(long)


def test_what_a_later_step_refuses_is_found_too(store: Store) -> None:
    source, second = texts("given", "other")
    bad = step("bad", steps.refuse, before=source, after=second, most=4)
    with refused("before", "out-of-range"):
        run_steps([source, second], store, INLINE, later=[bad])
    assert not store.is_done(second)


def test_what_is_asked_of_all_graphs() -> None:
    source, *after = texts("given", "a", "b", "c")
    same, as_well, less = (
        step(name, steps.refuse, before=source, after=last, most=most)
        for name, last, most in zip(("same", "as well", "less"), after, (4, 4, 5), strict=True)
    )
    assert select_shared_checks([source, same], [as_well, less]) == [same]
    assert select_shared_checks([same], [as_well], [less]) == []


def test_what_cannot_be_asked_fails_in_the_step(store: Store) -> None:
    (source,) = texts("given")
    run_steps([source], store, INLINE)
    (store.path(source) / "text").unlink()
    bad = step("bad", steps.refuse, before=source, after=source, most=9)
    with pytest.raises(StepFailed, match=r"step 'bad' failed: .*No such file.*\(traceback: "):
        run_steps(pending([bad], store), store, INLINE)


def test_the_same_is_asked_once(store: Store) -> None:
    (source,) = texts("given")
    nodes = [step("bad", steps.refuse, before=source, after=after, most=5) for after in texts("a", "b", "c")]
    run_steps(pending(nodes, store), store, INLINE)
    assert (store.path(source) / "asked").read_text() == "once\n"


def test_inline_mode_runs_one_step_at_a_time() -> None:
    with pytest.raises(ValueError, match=r"parallel_steps: got 2; accepted with mode: inline: 1"):
        Cluster(mode="inline", parallel_steps=2)


def test_a_step_that_another_driver_runs_is_shown_as_its_step(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What that driver has noted is left alone, and nothing is said to have been stopped; the wait is counted."""
    (node,) = texts("a")
    path = store.path(node)
    path.mkdir(parents=True)
    with Progress(path, 10, "texts"):
        pass

    @contextmanager
    def held(store: Store, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        assert read_progress(path) is not None
        on_wait("process 7 on vm")
        steps.write(path, None, text="a")
        (path / PROGRESS).unlink()
        store._write(node, {**dict.fromkeys(WRITTEN), "dropped": [], "cluster": None, "summary": {}})
        yield lambda record: False

    monkeypatch.setattr(Store, "locked", held)
    waits: list[float] = []
    assert run_steps([node], store, INLINE, on_waited=waits.append) == set()
    assert len(waits) == 1
    waits, done = capsys.readouterr().err.splitlines()
    assert waits == "[1/1] a: waiting for process 7 on vm, which is running this step"
    assert done.startswith("[1/1] a: done by another driver in ")
