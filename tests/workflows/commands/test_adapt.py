"""`adapt`: `init` and `run` in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.command_line import main
from sparring.workflows.commands import run
from tests.support import recognised
from tests.support.sources import write
from tests.support.tiny import Said


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A collection in `mine`, and the arguments of each run in place of the run."""
    calls: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "run_one", calls.append)
    recognised.beir(tmp_path / "mine")
    return calls


def test_adapt_writes_the_config_of_init_and_runs_it(runs: list[Any], said: Said) -> None:
    assert main(["init", "mine", "-o", "expected.yaml"]) == 0
    said()
    assert main(["adapt", "mine", "--set", "rounds=2", "--until", "data"]) == 0
    assert "\nwrote mine.yaml\n" in said()[0]
    written = Path("mine.yaml").read_text()
    assert written == Path("expected.yaml").read_text().replace("expected.yaml", "mine.yaml")
    (arguments,) = runs
    assert (arguments.config, arguments.assignments, arguments.until) == (Path("mine.yaml"), ["rounds=2"], "data")


def test_a_second_call_runs_the_config_as_it_is(runs: list[Any], said: Said) -> None:
    assert main(["adapt", "mine"]) == 0
    with Path("mine.yaml").open("a") as file:
        file.write("rounds: 3\n")
    assert main(["adapt", "mine"]) == 0
    assert "mine.yaml: is there already, and is run as it is." in said()[0]
    assert Path("mine.yaml").read_text().endswith("rounds: 3\n")
    assert main(["adapt", "mine", "--overwrite"]) == 0
    assert "rounds: 3" not in Path("mine.yaml").read_text()
    assert len(runs) == 3


def test_the_config_of_another_collection_is_left_alone(runs: list[Any], tmp_path: Path, said: Said) -> None:
    recognised.beir(tmp_path / "others" / "mine")
    assert main(["adapt", "mine"]) == 0
    assert main(["adapt", "others/mine"]) == 2
    assert said()[1].startswith("error: mine.yaml: it is the config of another collection than others/mine.")
    assert len(runs) == 1


def test_a_collection_that_leaves_a_decision_is_not_run(runs: list[Any], tmp_path: Path, said: Said) -> None:
    with (tmp_path / "mine" / "qrels" / "train.tsv").open("a") as file:
        file.write("nobody\td1\t1\n")
    assert main(["adapt", "mine"]) == 2
    out, err = said()
    assert "wrote mine.yaml" in out
    assert err.startswith("error: mine.yaml: it is not run yet, as the collection leaves you a decision.\n")
    assert "mine.yaml --set data.on_bad=drop\n" in err
    assert runs == []
    assert main(["adapt", "mine", "--overwrite", "--set", "data.on_bad=drop"]) == 0
    assert len(runs) == 1


def test_one_file_is_a_collection_too(runs: list[Any], tmp_path: Path) -> None:
    write(tmp_path / "faq.csv", "Question,Answer", *(f"{i}?,an answer to {i}" for i in range(9)))
    assert main(["adapt", "faq.csv"]) == 0
    assert main(["adapt", "faq.csv"]) == 0
    assert [arguments.config for arguments in runs] == [Path("faq.yaml")] * 2
