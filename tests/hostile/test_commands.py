"""Damaged input through the command line: one line, exit status 2, and nothing is written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparring.components.config import UserError
from sparring.components.systems import config as systems
from sparring.workflows.command_line import main
from sparring.workflows.distributed.cluster import read_cluster
from sparring.workflows.experiments import loading
from sparring.workflows.serving.marks import Marks
from tests.support import tiny
from tests.support.formats import MARKS, QRELS, RUN, collections
from tests.support.hostile import Cases, cases, counted, one_line
from tests.support.mutations import Damage, damage, damages, raw, yaml_of


class Kind(NamedTuple):
    """A kind of input."""

    write: Callable[[list[Damage]], Any]
    """Writes it, damaged."""
    command: list[str]
    """Reads it."""
    read: Callable[[], Any] | None = None
    """Reads it and no more, for a command that does long work with what it accepts."""


def kinds(place: tiny.Place, beir: Path, encoder: Path) -> dict[str, Kind]:
    """All but collections."""
    file, system = place.folder / "damaged", place.folder / "system"
    run, qrels, tree = place.folder / "whole.run", place.folder / "whole.qrels", tiny.ar2(beir, encoder)
    run.write_bytes(RUN)
    qrels.write_bytes(QRELS)
    (system / "lucene").mkdir(parents=True)
    (system / systems.DOCUMENTS).write_text('{"_id":"d1","title":"","text":"one"}\n')
    manifest = json.dumps({"version": 1, "name": "x", "documents": 1, "lexical": {"analysis": {}, "k": 8}})
    (system / systems.SYSTEM).write_text(manifest)

    def damaged(path: Path, whole: bytes) -> Callable[[list[Damage]], Any]:
        return lambda done: path.write_bytes(raw(whole, done))

    marks = ["marks", str(system), str(place.folder / "out"), "--marks", str(file)]
    return {
        "config": Kind(
            lambda done: place.config.write_bytes(yaml_of(tree, done)),
            place.words("run"),
            lambda: loading.read(place.config, [], place.runs),
        ),
        "profile": Kind(
            lambda done: file.write_bytes(yaml_of(tiny.INLINE, done)),
            place.words("run", "--cluster", str(file)),
            lambda: read_cluster(file),
        ),
        "ranking": Kind(damaged(file, RUN), ["evaluate", str(file), str(qrels)]),
        "qrels": Kind(damaged(file, QRELS), ["evaluate", str(run), str(file)]),
        "marks": Kind(damaged(file, MARKS), marks, lambda: Marks(file)),
        "system": Kind(
            damaged(system / systems.SYSTEM, manifest.encode()),
            ["search", str(system), "one"],
            lambda: systems.read(system),
        ),
    }


@pytest.fixture
def refuses(said: tiny.Said) -> Callable[..., bool]:
    """Whether a command refuses its input, which it does on standard error and with exit status 2; in one line, but
    where it says what a folder holds."""

    def tried(*words: str) -> bool:
        said()  # what wrote the input may have printed
        status = main(list(words))
        _, errors = said()
        assert status in (0, 2), errors
        if status == 2:
            first, *rest = errors.removesuffix("\n").split("\n")
            assert first.startswith("error: ")
            assert not rest or words[0] == "init"
            for line in (first.removeprefix("error: "), *rest):
                one_line(UserError(line), line[:100])
                assert str(UserError(line)) == line
        return status == 2

    return tried


@pytest.mark.parametrize("size", cases(fast=5, many=100))
@pytest.mark.parametrize("name", collections())
def test_a_damaged_collection(
    name: str, size: Cases, made: Any, beir: Path, encoder: Path, refuses: Callable[..., bool], tmp_path: Path
) -> None:
    """What is wrong with a declaration is said before anything is written. What is wrong inside of files is found while
    they are read: then there is no artifact."""

    def case(done: list[Damage], on_bad: str) -> str:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            keys = damage(Path(folder) / "in", made(name, Path(folder) / "in"), done)
            keys = {"on_bad": on_bad, **keys} if isinstance(keys, dict) else keys
            place = tiny.place(Path(folder) / "place", {**tiny.dpr(beir, encoder), "data": keys})
            assert refuses("init", f"{folder}/in", "-o", f"{folder}/c.yaml") != Path(folder, "c.yaml").exists()
            undeclared = refuses(*place.words("plan"))
            assert written(place) == []
            refused = refuses(*place.words("run", "--until", "data", "--no-estimate"))
            assert len(list(place.store.glob("*/artifact.json"))) == (not refused)
            if undeclared:
                assert refused
                assert written(place) == []
            return "refused" if refused else "accepted"

    counted(size, case, damages, lambda random: random.choice(["fail", "drop"]))


def written(place: tiny.Place) -> list[Path]:
    """What there is of a store and of runs."""
    return [path for path in (place.store, place.runs) if path.exists()]


@pytest.mark.parametrize("size", cases(fast=25, many=100))
@pytest.mark.parametrize("kind", ["config", "profile", "ranking", "qrels", "marks", "system"])
def test_another_damaged_file(
    kind: str, size: Cases, beir: Path, encoder: Path, refuses: Callable[..., bool], tmp_path: Path
) -> None:
    place = tiny.place(tmp_path / "place", tiny.ar2(beir, encoder))
    write, command, read = kinds(place, beir, encoder)[kind]

    def case(done: list[Damage]) -> str:
        write(done)
        before = tiny.contents(tmp_path)
        try:
            accepted = read is not None and (read(), True)[1]
        except UserError:
            accepted = False
        refused = not accepted and refuses(*command)
        assert tiny.contents(tmp_path) == before
        return "refused" if refused else "accepted"

    assert counted(size, case, damages)["refused"]
