"""The verdict of a run that is interrupted in a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sparring
from sparring.workflows.running import runner
from sparring.workflows.store.dag import Step
from tests.support import tiny
from tests.support.tiny import Place, Said

INTERRUPTED = "warm ranker"


@pytest.fixture(scope="module")
def undisturbed(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run that nobody interrupts."""
    place = tiny.place(tmp_path_factory.mktemp("undisturbed"), tiny.adapt(beir, encoder))
    assert place("run", "--no-estimate") == 0
    return place


def interrupt(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Run the place's config. Ctrl-C stops the run at the second training."""
    execute = runner.execute

    def stopped(node: Step, *arguments: Any, **more: Any) -> bool:
        if node.label == INTERRUPTED:
            raise KeyboardInterrupt
        return execute(node, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", stopped)
        assert place("run", "--no-estimate") == 130
    return place


def test_an_interrupted_run_leaves_its_newest_verdict(
    beir: Path, encoder: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = interrupt(tiny.place(tmp_path / "interrupted", tiny.adapt(beir, encoder)), monkeypatch)
    assert "This verdict is early (after warm retriever)." in said()[1]
    verdict = interrupted.metrics()["verdict"]
    assert verdict["moment"] == "after warm retriever"
    assert "ranker over retriever 1" in verdict["missing"]
    page = (interrupted.runs / "tiny" / "report.html").read_text()
    assert "The run goes on, or was stopped." in page

    assert interrupted("show") == 0
    out, err = said()
    assert verdict["sentences"][0] in " ".join(out.split())
    assert "its verdict after warm retriever" in err
    assert interrupted("show", "--json") == 0
    assert json.loads(said()[0])["verdict"] == verdict
    assert interrupted("report") == 0
    read = sparring.read(interrupted.config, store=interrupted.store, runs=interrupted.runs)
    assert read.verdict is not None
    assert read.verdict.json == verdict

    said()
    assert interrupted("export", str(tmp_path / "out")) == 0
    assert "its verdict after warm retriever" in said()[1]
    assert json.loads((tmp_path / "out" / "system" / "system.json").read_text())["name"] == verdict["deploy"]
    assert interrupted("search", "what is it") == 0
    assert f"its choice after warm retriever; {verdict['chosen']} searches here" in said()[1]


def test_a_resumed_run_equals_one_that_was_never_interrupted(
    beir: Path, encoder: Path, undisturbed: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = interrupt(tiny.place(tmp_path / "interrupted", tiny.adapt(beir, encoder)), monkeypatch)
    assert interrupted("run", "--no-estimate") == 0
    assert tiny.results(interrupted.store) == tiny.results(undisturbed.store)
    resumed, once = (place.metrics()["verdict"] for place in (interrupted, undisturbed))
    for key in ("deploy", "value", "comparison", "selection_values"):
        assert resumed[key] == once[key]
    assert resumed["moment"] == once["moment"] == ""
    assert resumed["early"] == []
