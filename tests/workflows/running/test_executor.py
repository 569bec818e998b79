"""Running one step: what it leaves when it ends, fails or is killed, and that two drivers run it once."""

from __future__ import annotations

import errno
import gzip
import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.functions import FunctionRef
from sparring.components.sources import docstrings
from sparring.components.sources.docstrings import Source
from sparring.workflows.running import executor
from sparring.workflows.running.executor import check_source_files
from sparring.workflows.steps.expand import FileConfig
from sparring.workflows.store import store as stores
from sparring.workflows.store.dag import Step, StepFailed, step
from sparring.workflows.store.planner import states
from sparring.workflows.store.store import DIGESTS, FAILURE, LOCK, RECORD, Store
from tests.support import steps
from tests.support.running import run
from tests.support.steps import chain
from tests.support.tiny import ROOT


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


# Failures


def test_a_failure_is_one_line_that_names_the_file_with_the_traceback(store: Store, tmp_path: Path) -> None:
    node = step("a step", steps.fail, kind="other", until=str(tmp_path / "go"))
    with pytest.raises(StepFailed) as caught:
        run([node], store)
    failure = store.path(node) / FAILURE
    assert str(caught.value) == f"step 'a step' failed: the reason (traceback: {failure})"
    assert "Traceback" in failure.read_text()
    assert "the long way to it" in failure.read_text()
    assert states([node], store)[0][1] == "partial"
    (tmp_path / "go").touch()
    assert run([node], store) == ["a step"]
    assert not failure.exists()


def asks(out: Path, machine: Any) -> None:
    """A step that says which URL it asked."""
    raise OSError("no answer from https://me:swordfish@example.org/texts")


def test_a_failure_does_not_tell_a_password(store: Store) -> None:
    node = step("a step", asks)
    with pytest.raises(StepFailed):
        run([node], store)
    assert "https://***@example.org/texts" in (store.path(node) / FAILURE).read_text()
    assert b"swordfish" not in b"".join(path.read_bytes() for path in store.path(node).rglob("*") if path.is_file())


def writes(out: Path, machine: Any) -> None:
    """A step whose library says in words of its own that the disk is full."""
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_step_that_has_filled_the_disk_says_what_to_do(store: Store) -> None:
    with pytest.raises(StepFailed, match=r"\(os error 28\) .*; free some, or use another disk \(--store PLACE\)$"):
        run([step("a step", writes)], store)


def test_a_disk_without_space_for_the_traceback_does_not_hide_the_step(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def full(path: Path, *arguments: Any, **options: Any) -> int:
        if path.name == FAILURE:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(
        StepFailed, match=r"^step 'a step' failed: the reason \(traceback: not written: .*No space left"
    ):
        run([step("a step", steps.fail, kind="other", until=str(tmp_path / "go"))], store)


def test_an_error_without_a_message_is_named_by_its_type(store: Store) -> None:
    with pytest.raises(StepFailed, match=r"^step 's' failed: AssertionError \("):
        run([step("s", steps.fail, kind="silent", until="nowhere")], store)


def test_a_package_whose_version_changed_after_it_was_read_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documentation would be another collection under the same name."""
    installed = {"yaml": "6.0.1", "stdlib": "3.11.9"}
    monkeypatch.setattr(docstrings, "version_of", installed.__getitem__)

    def node(**keys: Any) -> Step:
        return step("data", steps.join, parts=[], options=Source(format="docstrings", packages=["yaml"], **keys))

    assert run([node()], store) == ["data"]
    check_source_files([node()], store)
    installed["yaml"] = "6.0.2"
    message = (
        "the package yaml is version 6.0.2 here, but the step .data. read version 6.0.1; .*versions: {yaml: .6.0.2.}"
    )
    with pytest.raises(UserError, match=message):
        check_source_files([node()], store)
    declared = node(versions={"yaml": "6.0.2"})
    check_source_files([declared], store)
    assert run([declared], store) == ["data"]
    check_source_files([declared], store)


def test_a_changed_file_of_expansions_is_named_plain_or_compressed(store: Store, tmp_path: Path) -> None:
    """The config names the plain file; the compressed one beside it is what is read."""
    path = tmp_path / "expansions.jsonl.gz"
    path.write_bytes(gzip.compress(b"one"))
    options: Any = FileConfig(path=str(path.with_suffix("")), field="titles")
    node = step("expansions", steps.join, parts=[], options=options)
    assert run([node], store) == ["expansions"]
    check_source_files([node], store)
    path.write_bytes(gzip.compress(b"two"))
    with pytest.raises(UserError, match=r"expansions\.jsonl\.gz: changed since the step 'expansions' read it"):
        check_source_files([node], store)


def test_a_step_whose_code_was_edited_after_the_plan_is_not_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results would lie where those of the code before belong."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_losses.py").write_text("def loss(scores): return scores.student\n")
    options: Any = FunctionRef(function="edited_losses.loss")
    before = step("before", steps.join, parts=[], options=options)
    assert run([before], store) == ["before"]
    record = store.record(before)
    assert record is not None
    assert record["modules"].keys() == {"edited_losses", "tests.support.steps"}
    node = step("after", steps.join, parts=[before], options=options)
    (tmp_path / "edited_losses.py").write_text("def loss(scores): return -scores.student\n")
    with pytest.raises(UserError, match="after: the source of edited_losses changed after the run began; repeat"):
        run([node], store)
    assert not store.is_done(node)


@pytest.mark.parametrize(("kind", "error"), [("user", UserError), ("interrupt", KeyboardInterrupt)])
def test_a_users_mistake_is_raised_as_it_is(store: Store, kind: str, error: type[BaseException]) -> None:
    node = step("u", steps.fail, kind=kind, until="nowhere")
    with pytest.raises(error):
        run([node], store)
    assert not store.is_done(node)
    assert not (store.path(node) / FAILURE).exists()


def test_temporary_files_of_killed_writers_are_deleted(store: Store) -> None:
    node = step("a", steps.write, text="a")
    store.path(node).mkdir(parents=True)
    (store.path(node) / ".text.0123abcd").write_text("half")
    run([node], store)
    assert not list(store.path(node).glob(".*"))


def test_a_half_written_record_does_not_finish_a_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is written under another name and renamed when it is complete."""
    node = step("a", steps.write, text="a")

    def torn(path: Path, value: Any) -> None:
        path.with_name(f".{path.name}.0123abcd").write_text(json.dumps(value)[:20])
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "write_json", torn)
        with pytest.raises(StepFailed, match="full"):
            run([node], store)
    assert not store.is_done(node)
    assert run([node], store) == ["a"]


@pytest.mark.parametrize(("long", "released"), [(0.0, 1), (60.0, 0)])
@pytest.mark.parametrize("kind", ["none", "other"])
def test_a_long_step_gives_memory_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, long: float, released: int
) -> None:
    """Whether it ends well or not: without Ray the next one runs in the same process."""
    calls: list[None] = []
    monkeypatch.setattr(executor, "LONG", long)
    monkeypatch.setattr(executor, "release_memory", lambda: calls.append(None))
    node = chain()["a"] if kind == "none" else step("a step", steps.fail, kind=kind, until=str(tmp_path / "go"))
    with pytest.raises(StepFailed) if kind == "other" else nullcontext():
        run([node], store)
    assert len(calls) == released


def test_the_record_says_how_the_artifact_was_made(store: Store) -> None:
    nodes = chain()
    run([nodes["ab"]], store)
    record = store.record(nodes["ab"])
    assert record["function"] == "tests.support.steps.join"
    assert record["fingerprint"] == nodes["ab"].fingerprint
    assert record["upstream"] == [nodes["a"].name, nodes["b"].name]
    assert record["inputs"]["options"] == {"number": 1, "names": []}
    assert record["summary"] == {}
    assert store.record(nodes["a"])["summary"] == {"characters": 1}


@pytest.mark.parametrize(
    ("summary", "says"),
    [({"count": object()}, "what is no JSON: Object of type object"), ([1], "list; accepted: a dictionary, or None")],
)
def test_a_summary_is_a_json_object(store: Store, summary: Any, says: str) -> None:
    def summed(out: Path, machine: Any) -> Any:
        return summary

    with pytest.raises(StepFailed, match=f"step 'a step' failed: summed returned {says}"):
        run([step("a step", summed)], store)
    assert store.record(step("a step", summed)) is None


# Two drivers, and killed drivers

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from tests.support import steps
from sparring.workflows.running.executor import execute
from sparring.workflows.store import dag, store
function, inputs, root, kill = json.loads(sys.argv[1])
if kill:  # after the step's last file, before its record
    store.write_json = lambda path, value: os.kill(os.getpid(), signal.SIGKILL)
node = dag.step("it", getattr(steps, function), **inputs)
on_wait = lambda holder: print("waits for", holder, flush=True)
print("ran", execute(node, store.Store(Path(root)), None, on_wait=on_wait))
"""


def driver(node: Step, store: Store, *, kill: bool = False) -> subprocess.Popen[str]:
    """Another process that executes a step."""
    words = json.dumps([node.function.__name__, dict(node.inputs), str(store.root), kill])
    command = [sys.executable, "-c", DRIVER, words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until another process has made a file."""
    while not path.exists():
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_of_two_drivers_one_runs_a_step(store: Store, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_of_twenty_drivers_one_runs_a_step_and_another_where_it_is_killed(store: Store, tmp_path: Path) -> None:
    """The first that came is killed; one of the nineteen that wait runs the step, and the others take what it made."""
    started, go = tmp_path / "started", tmp_path / "go"
    node = step("it", steps.wait, started=str(started), go=str(go))
    with ExitStack() as stack:
        first = stack.enter_context(driver(node, store))
        wait_for(started, first)
        drivers = [stack.enter_context(driver(node, store)) for _ in range(19)]
        for process in drivers:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"waits for process {first.pid} on ")
        first.kill()
        go.touch()
        outputs = Counter(process.stdout.read() for process in drivers if process.stdout is not None)
    assert outputs == {"ran True\n": 1, "ran False\n": 18}
    assert [process.returncode for process in drivers] == [0] * 19
    assert steps.calls(store.path(node)) == 2


def test_a_killed_driver_frees_its_lock_and_the_waiting_one_runs_the_step(store: Store, tmp_path: Path) -> None:
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
    assert store.is_done(node)
    assert steps.calls(store.path(node)) == 2


def test_a_driver_killed_in_a_step_leaves_no_half_written_file(store: Store, tmp_path: Path) -> None:
    node = step("it", steps.die, once=str(tmp_path / "once"))
    with driver(node, store) as first:
        pass
    assert first.returncode == -signal.SIGKILL
    assert not store.is_done(node)
    assert not (store.path(node) / "whole").exists()
    assert run([node], store) == ["it"]
    assert {path.name for path in store.path(node).iterdir()} == {"calls", DIGESTS, LOCK, RECORD}


def test_a_step_whose_driver_was_killed_before_the_record_is_not_done(store: Store) -> None:
    node = step("it", steps.write, text="a")
    with driver(node, store, kill=True) as first:
        pass
    assert first.returncode == -signal.SIGKILL
    assert (store.path(node) / "text").exists()
    assert not store.is_done(node)
    assert run([node], store) == ["it"]
    assert steps.calls(store.path(node)) == 2
