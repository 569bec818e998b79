"""Files of a run that are cut or lost: one line names the file and what to do, and what does not need it goes on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.tiny import Place, Said


@pytest.fixture
def copy(played: Place, tmp_path: Path) -> Place:
    return played.copy(tmp_path / "copy")


def error(said: Said) -> str:
    """Return the only line of the errors, without the line that says how much a resumed run has done already."""
    [line] = [line for line in said()[1].splitlines() if not line.startswith("resuming: ")]
    return line


def test_a_record_that_is_cut(copy: Place, said: Said) -> None:
    record = copy.artifact("data") / "artifact.json"
    for text, wrong in {"{": "not JSON: Expecting .*", '{"a": 1}': "no record of a step"}.items():
        record.write_text(text)
        said()
        for words in (["plan"], ["run"], ["show", "data"]):
            assert copy(*words) == 2
            wanted = rf"error: {record}: {wrong}; remove {record.parent}, and repeat the command"
            assert re.fullmatch(wanted, error(said))


def test_a_table_that_is_cut(copy: Place, said: Said) -> None:
    """Arrow's error does not name the file; the step that fails by it does, and the command that reads it."""
    table = copy.artifact("data") / "documents.parquet"
    table.write_bytes(table.read_bytes()[:40])
    named = rf"{table}: not a Parquet file, or truncated: .*; remove {table.parent} and make it again"
    said()
    assert copy("search", "barami", "--system", "retriever 1") == 2
    assert re.fullmatch(rf"error: {named}: .* run .* --cluster .* --until 'data'", error(said))
    (copy.artifact("bm25 index") / "artifact.json").unlink()
    assert copy("run", "--until", "bm25 index", "--no-estimate") == 2
    assert re.fullmatch(rf"error: bm25 index: {named}: repeat the command", error(said))
    assert copy("run", "--no-estimate") == 2  # nothing to run, but the report shows texts
    assert re.fullmatch(rf"error: {named}: .* --until 'data'", error(said))


def test_a_table_whose_footer_is_wrong(copy: Place, said: Said) -> None:
    """Arrow raises an OSError then, of no system call."""
    table = copy.artifact("data") / "documents.parquet"
    whole = table.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    table.write_bytes(whole[: -8 - length] + b"\xff" * length + whole[-8:])
    said()
    assert copy("search", "barami", "--system", "retriever 1") == 2
    assert re.fullmatch(rf"error: {table}: not a Parquet file, or truncated: .*; remove .* --until 'data'", error(said))


def test_measures_that_are_cut(copy: Place, said: Said) -> None:
    """Those in the run's folder are written again; those of the step cannot be, but by it."""
    said()
    assert copy("show") == 0
    before = said()[0]
    (copy.runs / "tiny" / "metrics.json").write_text("{")
    assert copy("show") == 0
    assert said()[0] == before
    measures = copy.artifact("results") / "metrics.json"
    measures.write_text("{")
    assert copy("show") == 2
    assert re.fullmatch(
        rf"error: {measures}: not JSON: .*; remove {measures.parent} and make it again: .* --until 'results'",
        error(said),
    )


def test_a_step_of_a_finished_run_that_is_gone(copy: Place, said: Said) -> None:
    """`run` alone would find nothing to do."""
    shutil.rmtree(copy.artifact("retriever 1 vectors"))
    said()
    assert copy("search", "barami", "--system", "retriever 1") == 2
    assert re.fullmatch(
        r"error: the step 'retriever 1 vectors' is not done; run it first: .* --until 'retriever 1 vectors'",
        error(said),
    )


def test_what_has_changed_is_not_exported(copy: Place, tmp_path: Path, said: Said) -> None:
    """A byte of weights that can still be read: nothing else would notice."""
    weights = copy.artifact("retriever 1") / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    said()
    assert copy("export", str(tmp_path / "out")) == 2
    wanted = rf"error: {weights} has changed; remove {weights.parents[1]} and make it again: .* --until 'retriever 1'"
    assert re.fullmatch(wanted, error(said))
    assert not (tmp_path / "out").exists()
