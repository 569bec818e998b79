"""`clean`: what it frees, what it keeps, and that nothing is computed again for it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from sparring.workflows.experiments import loading
from sparring.workflows.report.run_folder import at_work
from sparring.workflows.store.planner import pending
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from tests.support import tiny
from tests.support.light import light
from tests.support.tiny import Place, Said


def test_clean_frees_what_no_one_needs_and_nothing_comes_back(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept are the last retrieval and what is deployed; which toy is the best differs from one processor to another."""
    monkeypatch.setattr(deployable, "_recommended", lambda outcome, store: [outcome.ranked["start model"]])
    place = played.copy(tmp_path / "clean")
    before = tiny.contents(place.folder)
    assert place("show") == 0
    table = said()[0]
    assert place("clean", "--dry-run") == 0
    planned = said()[0].splitlines()
    assert tiny.contents(place.folder) == before
    assert place("clean") == 0
    dropped = said()[0].splitlines()
    assert [line.replace("would drop", "dropped") for line in planned[:-1]] == dropped[:-1]
    assert [line.split("  ")[-1].partition(":")[0] for line in dropped[:-1]] == [
        "start queries (test)",
        "start queries (dev)",
        "warm retriever",
        "warm retriever vectors",
        "warm retriever queries (test)",
        "warm retriever queries (train)",
        "warm ranker",
        "warm retriever queries (dev)",
        "retriever 1 queries (test)",
        "retriever 1 queries (dev)",
        "control in-batch 1 vectors",
        "control in-batch 1 queries (test)",
        "control ance 1 vectors",
        "control ance 1 queries (test)",
        "control in-batch 1 queries (dev)",
        "control ance 1 queries (dev)",
    ]
    assert tiny.results(place.store) == tiny.results(played.store)
    assert place("plan") == 0
    text = said()[0]
    assert all(f"done, {files} dropped" in text for files in ("documents-*.npy", "queries.npy", "state"))
    assert place("clean") == 0
    assert said()[0] == "0 B freed\n"
    again = light(place, "run")
    assert again.splitlines()[:8] == table.splitlines()[:8]  # the verdict below has times
    assert "nothing to run" in again
    assert place("search", "barami", "--system", "ranker over retriever 1") == 0
    assert place("export", str(tmp_path / "out")) == 0


def test_clean_goes_on_where_it_was_killed(played: Place, tmp_path: Path, said: Said) -> None:
    """Between the record that says so and the files."""
    place = played.copy(tmp_path / "clean")
    vectors = place.artifact("warm retriever vectors")
    record = json.loads((vectors / "artifact.json").read_text())
    (vectors / "artifact.json").write_text(json.dumps({**record, "dropped": ["documents-*.npy"]}))
    assert place("clean") == 0
    assert "warm retriever vectors" in said()[0]
    assert [path.name for path in vectors.glob("*.npy")] == []


def test_what_was_dropped_comes_back_when_it_is_asked_for(played: Place, tmp_path: Path, said: Said) -> None:
    """Another run's clean may take the vectors that this run searches."""
    place = played.copy(tmp_path / "clean")
    vectors = place.artifact("retriever 1 vectors")
    record = json.loads((vectors / "artifact.json").read_text())
    before = {path.name: path.read_bytes() for path in vectors.glob("*.npy")}
    (vectors / "artifact.json").write_text(json.dumps({**record, "dropped": ["documents-*.npy"]}))
    for path in vectors.glob("documents-*.npy"):
        path.unlink()
    requests = ("search", "barami", "--system", "retriever 1")
    assert place(*requests) == 2
    places = f"--store {place.store} --runs {place.runs}"
    run = f"run {place.config} --cluster {place.folder / 'inline.yaml'}"
    again = f"python -m workflows {places} {run} --until 'retriever 1 vectors'"
    assert said()[1].endswith(f"were dropped; make them again: {again}\n")
    assert place("run", "--until", "retriever 1 vectors") == 0
    assert {path.name: path.read_bytes() for path in vectors.glob("*.npy")} == before
    assert place(*requests) == 0


@pytest.mark.parametrize(
    ("assignment", "trained"),
    [
        ("rerank.depth=5", set()),
        ("analyse={}", set()),
        ("k=10", {"warm ranker", "ranker 1", "retriever 1", "control in-batch 1", "control ance 1"}),
        ("retriever.game.train.learning_rate=0.01", {"retriever 1", "control in-batch 1", "control ance 1"}),
    ],
)
def test_after_clean_nothing_is_trained_again_whose_model_is_there(
    played: Place, tmp_path: Path, assignment: str, trained: set[str]
) -> None:
    """Other lists are mined anew; the warm retriever, without its optimizer's state, only encodes again."""
    place = played.copy(tmp_path / "clean")
    assert place("clean") == 0
    experiment = loading.read(place.config, [assignment], place.runs)
    waiting = pending(experiment.wanted, Store(place.store))
    assert {node.label for node in waiting if node.function.__name__ == "train"} == trained


def test_an_edit_after_clean_runs_to_the_end(played: Place, tmp_path: Path) -> None:
    place = played.copy(tmp_path / "clean")
    assert place("clean") == 0
    assert place("run", "--set", "analyse={}") == 0


def test_clean_of_an_unfinished_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    assert place("clean") == 2
    assert said()[1].startswith("error: no step of this run is finished or started; there is nothing to clean")
    assert place("run", "--until", "tokens") == 0
    assert place("clean") == 2
    assert said()[1].splitlines()[-1].startswith("error: the run is not finished")


def test_a_run_beside_it_that_cannot_be_read_is_named(played: Place, tmp_path: Path, said: Said) -> None:
    """Nobody can say what it uses."""
    place = played.copy(tmp_path / "clean")
    assert place("run", "--set", "evaluate.measures=[RR@10]", "--until", "data") == 0
    second = next(folder for folder in place.runs.iterdir() if folder.name != "tiny")
    file = second / "config.yaml"
    file.write_text(file.read_text().replace("components.losses.", "nowhere.losses."))
    before = tiny.contents(place.store)
    assert place("clean", "--whole") == 2
    error = said()[1].splitlines()[-1]
    assert error.startswith(
        f"error: {second} may use what would be removed, and its config cannot be read; fix the config, or "
    )
    assert "no module 'nowhere" in error
    assert tiny.contents(place.store) == before


def test_what_an_unfinished_run_beside_it_uses_stays(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployable, "_recommended", lambda outcome, store: [outcome.ranked["start model"]])
    place = played.copy(tmp_path / "clean")
    assert place("run", "--set", "evaluate.measures=[RR@10]", "--until", "warm retriever vectors") == 0
    said()
    assert place("clean") == 0
    dropped = said()[0]
    assert "warm retriever vectors" not in dropped
    assert "control ance 1 vectors" not in dropped
    finished = tmp_path / "finished"
    place = played.copy(finished)
    assert place("run", "--set", "evaluate.measures=[RR@10]") == 0
    said()
    assert place("clean") == 0
    assert "warm retriever vectors" in said()[0]


def test_a_run_of_another_config_is_not_taken_for_ones_own(played: Place, tmp_path: Path, said: Said) -> None:
    """Its folder has the config that was run; the file has been edited since."""
    place = played.copy(tmp_path / "clean")
    tree = yaml.safe_load(place.config.read_text())
    tiny.write(place.config, {**tree, "evaluate": {"measures": ["R@5"]}})
    before = tiny.contents(place.folder)
    assert place("clean", "--whole") == 2
    assert "tiny: the config was changed since this run. To remove the run's artifacts, give this" in said()[1]
    assert tiny.contents(place.folder) == before


def test_a_whole_run_is_removed_but_for_what_another_uses(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "clean")
    assert place("run", "--set", "evaluate.measures=[RR@10]", "--until", "warm retriever vectors") == 0
    second = next(folder for folder in place.runs.iterdir() if folder.name != "tiny")
    used = {Path(os.readlink(link)).name for link in second.iterdir() if link.is_symlink()}
    for link in second.iterdir():
        if link.is_symlink():  # as of a run that is under way
            link.unlink()
    assert place("clean", "--set", "evaluate.measures=[RR@10]") == 2
    assert "accepted: --whole, which removes all of it" in said()[1]
    before = tiny.contents(place.folder)
    assert place("clean", "--whole", "--dry-run") == 0
    assert tiny.contents(place.folder) == before
    said()
    assert place("clean", "--whole") == 0
    lines = said()[0].splitlines()
    assert lines[-1].endswith(" kB freed")
    assert re.match(r"kept, as other runs in .*runs use them: .*warm retriever vectors", lines[-2])
    assert any(line.endswith("  results") for line in lines[:-2])
    assert not any("warm retriever vectors" in line for line in lines[:-2])
    assert {path.name for path in place.store.iterdir() if path.is_dir() and not path.name.startswith(".")} == used
    assert (place.runs / "tiny" / "report.html").is_file()
    assert place.links() == []
    assert place("plan", "--set", "evaluate.measures=[RR@10]") == 0
    assert "warm retriever vectors  " in said()[0]
    assert place("clean", "--whole", "--set", "evaluate.measures=[RR@10]") == 0
    assert [path for path in place.store.iterdir() if path.is_dir() and not path.name.startswith(".")] == []


def test_what_a_finished_run_links_to_stays_whatever_its_config_builds_on_by_now(
    played: Place, tmp_path: Path, said: Said
) -> None:
    """An experiment that another is built on may have been edited since. What is no run there is passed over."""
    place = played.copy(tmp_path / "clean")
    (place.runs / "other-against-tiny.html").write_text("a page")
    (second := place.runs / "other").mkdir()
    tree = yaml.safe_load(place.config.read_text())
    tiny.write(second / "config.yaml", {**tree, "seeds": [9]})
    (second / "plan.txt").write_text("")
    kept = place.artifact("control ance 1").resolve()
    (second / "control").symlink_to(kept)
    assert place("clean", "--whole") == 0
    assert kept.is_dir()
    assert not list(place.store.glob("results-*"))


def test_a_run_that_is_under_way_is_not_removed(played: Place, tmp_path: Path, said: Said) -> None:
    """Between two of its steps no artifact is held, and yet all of them are needed."""
    place = played.copy(tmp_path / "under way")
    run = place.runs / "tiny"
    before = tiny.contents(place.store)
    for mode in ((), ("--whole",)):
        with at_work(run), at_work(run):
            assert place("clean", *mode) == 2
        answer = f"error: {run}: a run is under way in it, or a service answers from it; stop it first\n"
        assert said()[1] == answer
    assert tiny.contents(place.store) == before
    assert place("clean", "--whole") == 0
