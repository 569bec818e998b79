"""`run` and `plan` of several experiments, one after another."""

from __future__ import annotations

import argparse
import errno
import os
import re
from pathlib import Path

import pytest

from sparring.workflows.command_line import main
from sparring.workflows.commands.batch import named
from sparring.workflows.report.run_folder import RunFolder
from tests.support import tiny
from tests.support.tiny import Place, Said


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, beir: Path, encoder: Path) -> Place:
    """A folder with an experiment, one without data, one that has no small scale, and the first once more."""
    tree = {**tiny.dpr(beir, encoder), "train": None, "small": {"k": 9}}
    place = tiny.place(tmp_path_factory.mktemp("several"), tree)
    (folder := place.folder / "all").mkdir()
    tiny.write(folder / "table2.yaml", tree)
    tiny.write(folder / "table3.yaml", {**tree, "data": {"format": "beir", "path": "nowhere"}})
    tiny.write(folder / "table4.yaml", {**tree, "small": "it is of a size"})
    tiny.write(folder / "table10.yaml", {"base": "table2.yaml"})
    return place


def call(place: Place, command: str, *words: str) -> int:
    """A command on the whole folder."""
    cluster = ["--cluster", str(place.folder / "inline.yaml")] if command == "run" else []
    where = ["--store", place.where, "--runs", str(place.runs)]
    return main([*where, command, str(place.folder / "all"), *cluster, *words])


def test_each_is_run_whatever_happens_to_others(several: Place, said: Said) -> None:
    assert call(several, "plan", "--set", "scale=small") == 0
    lines = [re.sub(r"^.*/", "", line) for line in said()[0].splitlines()]
    number = [int(line.split()[1]) for line in lines[:2]]
    names = [f"table{number}.yaml" for number in (2, 3, 4, 10)]
    assert [line.split(":")[0] for line in lines] == [*names, "in all"]
    assert lines[2] == "table4.yaml: left out: it is of a size"
    assert call(several, "run", "--set", "scale=small") == 2
    out, errors = said()
    assert re.search(r"==== 4 of 4: .*table10\.yaml", out)
    ends = out.splitlines()[-4:]
    assert re.fullmatch(r"done +\d.* s .*all/table2\.yaml", ends[0])
    assert re.fullmatch(r"failed +.*all/table3\.yaml: .*nowhere.*", ends[1])
    assert re.fullmatch(r"left out +.*all/table4\.yaml: it is of a size", ends[2])
    assert re.fullmatch(r"done +\d.* s .*all/table10\.yaml", ends[3])
    assert errors.splitlines()[-1] == "error: 1 of 4 experiments, above"
    assert number[0] > 0
    assert call(several, "plan", "--set", "scale=small") == 0
    assert [line.partition(": ")[2].split()[0] for line in said()[0].splitlines()[:4:3]] == ["0", "0"]


def test_a_disk_that_fails_one_leaves_the_others(several: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    real, rest = RunFolder.write_plan, [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def write_plan(self: RunFolder) -> None:
        if rest:
            raise rest.pop()
        real(self)

    monkeypatch.setattr(RunFolder, "write_plan", write_plan)
    assert call(several, "run", "--set", "scale=small") != 0
    ends = said()[0].splitlines()[-4:]
    assert ends[0].startswith("failed ")
    assert "No space left on device" in ends[0]
    assert ends[3].startswith("done ")


def test_two_that_would_have_one_folder_are_told(several: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "all").mkdir()
    again = tiny.write(tmp_path / "all" / "table2.yaml", {})
    first = several.folder / "all" / "table2.yaml"
    assert main(["--runs", str(tmp_path / "runs"), "run", str(first), str(again)]) == 2
    assert said()[1] == (
        f"error: {again}: its run would have the folder of {first}'s, {tmp_path}/runs/table2; accepted: files of "
        "different names\n"
    )


def test_a_folder_without_configs_is_told(tmp_path: Path, said: Said) -> None:
    assert main(["plan", str(tmp_path)]) == 2
    assert said()[1] == f"error: {tmp_path}: a folder without configs; accepted: a config, or a folder that has some\n"


def test_an_estimate_is_of_one(several: Place, said: Said) -> None:
    assert call(several, "plan", "--estimate") == 2
    assert said()[1] == "error: --estimate: it takes one experiment; accepted: one config\n"


def test_configs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("t10", "t2", "t1\u00b22"):
        (tmp_path / f"{name}.yaml").touch()
    result = named(argparse.Namespace(configs=[tmp_path]))
    assert [path.stem for path in result] == ["t1\u00b22", "t2", "t10"]
