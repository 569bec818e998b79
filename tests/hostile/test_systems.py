"""Exported systems, stores and start models with files that are cut or lost: one line names the file, or its folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.components.config import UserError
from tests.support import deployed, searching, tiny
from tests.support.hostile import one_line
from tests.support.tiny import Place, Said

QUERIES = ["bara", "kola misu"]


@pytest.fixture(scope="module")
def run(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run."""
    place = tiny.place(tmp_path_factory.mktemp("damaged"), deployed.config(beir, encoder))
    assert place("run") == 0
    return place


@pytest.fixture(scope="module")
def whole(run: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system of every stage."""
    to = tmp_path_factory.mktemp("exported") / "out"
    assert run("export", str(to), "--system", deployed.FUSED) == 0
    return to / "system"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [cut, Path.unlink], ids=["cut", "lost"])
def test_every_file_of_a_system(whole: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """It is refused in a line that says to export it again, or finds what it found."""
    files = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
    copies = [shutil.copytree(whole, tmp_path / str(number)) for number in range(len(files))]
    for copy, file in zip(copies, files, strict=True):
        harm(copy / file)
    opened, *outcomes = searching.opened([(folder, QUERIES, 5) for folder in (whole, *copies)])
    assert isinstance(opened, list)
    refused = set()
    for copy, file, outcome in zip(copies, files, outcomes, strict=True):
        if outcome != opened:
            assert isinstance(outcome, str), file
            one_line(UserError(outcome), f"{copy / file}", f"{(copy / file).parent}: ")
            assert "Traceback" not in outcome, outcome
            refused.add(str(file))
    assert {"index.faiss", "documents.jsonl", "system.json"} <= refused
    assert {f"{m}/{n}" for m in ("retriever", "ranker") for n in ("model.safetensors", "config.json")} <= refused


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "sparring.json", "tokenizer.json"])
@pytest.mark.parametrize("harm", [cut, Path.unlink], ids=["cut", "lost"])
def test_a_model_in_a_store(run: Place, tmp_path: Path, said: Said, harm: Callable[[Path], None], file: str) -> None:
    """The line says what to remove, and the command that makes it again."""
    copy = run.copy(tmp_path / "copy")
    artifact = copy.artifact("start retriever")
    harm(artifact / "model" / file)
    said()
    assert copy("search", "bara", "--system", "retriever") == 2
    error = said()[1]
    assert error.startswith(f"error: {artifact / 'model'}")
    assert file in error
    assert error.count("\n") == 1
    remedy = re.search(r"; remove (\S+) and make it again: python -m workflows .* --until 'start retriever'\n$", error)
    assert remedy is not None, error
    shutil.rmtree(remedy[1])
    assert copy("run", "--until", "start retriever") == 0
    assert copy("search", "bara", "--system", "retriever") == 0
    said()
    harm(artifact / "model" / file)
    assert copy("export", str(tmp_path / "out")) == 2
    exporting = said()[1]
    assert exporting.startswith(f"error: {artifact / 'model'}")
    assert f"; remove {artifact} and make it again: " in exporting


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_start_model(beir: Path, encoder: Path, tmp_path: Path, said: Said, file: str) -> None:
    model = shutil.copytree(encoder, tmp_path / "model")
    cut(model / file)
    assert tiny.place(tmp_path / "place", deployed.config(beir, model))("run") == 2
    error = said()[1].splitlines()[-1]
    assert f"model: {model}: " in error
    assert f"{model / file}: not " in error
